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

from pytest_multihost import hookspecs
from pytest_multihost.core import built_in

if TYPE_CHECKING:
    from pytest_multihost.core.model.spec import RecorderPart
    from pytest_multihost.core.report.renderer import Renderer

EXTENSIONS = "pytest_multihost.extensions"
"""The package of the extensions, named only here and only as a text: the core imports none."""

PREFIX = "multihost_"
"""The prefix of the name under which an extension is registered: ``-p no:multihost_sweep``."""

_BUILT_IN = f"{PREFIX}built_in"


def extension_plugins() -> Iterator[tuple[str, ModuleType]]:
    """Yield the name and the plugin of each extension, in alphabetical order."""
    folders = importlib.import_module(EXTENSIONS).__path__
    for found in sorted(pkgutil.iter_modules(folders), key=lambda each: each.name):
        if found.ispkg:
            module = importlib.import_module(f"{EXTENSIONS}.{found.name}")
            yield f"{PREFIX}{found.name}", module


def new_plugin_manager() -> pluggy.PluginManager:
    """Return a manager with this package's hooks, the built-in plugin and the extensions.

    It is for programs that run no tests; in pytest, pytest's own manager has the same plugins.
    """
    manager = pluggy.PluginManager("pytest")
    complete(manager)
    return manager


def complete(manager: pluggy.PluginManager) -> None:
    """Add this package's hooks, the built-in plugin and the extensions, unless already there."""
    if manager.has_plugin(_BUILT_IN):
        return
    manager.add_hookspecs(hookspecs)
    manager.register(built_in, _BUILT_IN)
    register_extensions(manager)


def register_extensions(manager: pluggy.PluginManager) -> None:
    """Register the plugins of all extensions, unless the user has switched them off."""
    for name, module in extension_plugins():
        if not manager.is_blocked(name) and not manager.has_plugin(name):
            manager.register(module, name)


def unregister_all(manager: pluggy.PluginManager) -> None:
    """Take away everything of this package, because its plugin for pytest was switched off."""
    for name, plugin in manager.list_name_plugin():
        if plugin is not None and name.startswith(PREFIX):
            manager.unregister(name=name)


def offered_recorders(hook: pluggy.HookRelay) -> tuple[RecorderPart, ...]:
    """Return the recorders of all plugins."""
    return tuple(part for group in hook.pytest_multihost_recorders() for part in group)


def offered_renderers(hook: pluggy.HookRelay) -> tuple[Renderer, ...]:
    """Return the renderers of all plugins."""
    groups = hook.pytest_multihost_renderers()
    return tuple(renderer for group in groups for renderer in group)
