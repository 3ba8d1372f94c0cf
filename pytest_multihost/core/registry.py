"""The extensions of this package, and a plugin manager for programs without pytest.

Every package below `pytest_multihost.extensions` is an extension. Its `__init__` is a plugin: a
module with implementations of the hooks in `pytest_multihost.hookspecs`. Nothing else names an
extension, so its folder can be deleted.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pluggy

from pytest_multihost import extensions, hookspecs
from pytest_multihost.core import built_in

if TYPE_CHECKING:
    from pytest_multihost.core.report.renderer import Renderer

PREFIX = "multihost_"
"""Begins the name under which an extension is registered: ``-p no:multihost_sweep``."""


def extension_plugins() -> Iterator[tuple[str, ModuleType]]:
    """Yield the name and the plugin of each extension, in alphabetical order."""
    for found in sorted(pkgutil.iter_modules(extensions.__path__), key=lambda each: each.name):
        if found.ispkg:
            module = importlib.import_module(f"{extensions.__name__}.{found.name}")
            yield f"{PREFIX}{found.name}", module


def new_plugin_manager() -> pluggy.PluginManager:
    """Return a manager that knows our hooks, what is built in and the extensions.

    For programs that run no tests. In pytest its own manager has the same plugins.
    """
    manager = pluggy.PluginManager("pytest")
    manager.add_hookspecs(hookspecs)
    manager.register(built_in, f"{PREFIX}built_in")
    register_extensions(manager)
    return manager


def register_extensions(manager: pluggy.PluginManager) -> None:
    """Register the plugins of all extensions, except those that were switched off by name."""
    for name, module in extension_plugins():
        if not manager.is_blocked(name) and not manager.has_plugin(name):
            manager.register(module, name)


def offered_renderers(manager: pluggy.PluginManager) -> tuple[Renderer, ...]:
    """Return the renderers of all plugins."""
    groups = manager.hook.pytest_multihost_renderers()
    return tuple(renderer for group in groups for renderer in group)
