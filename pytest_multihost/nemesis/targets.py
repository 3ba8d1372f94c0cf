"""Find the functions that points name."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_multihost.model.errors import SettingError

Namespace = Any  # a module, a class, or an object that replaces a module in sys.modules
Function = Any  # a function, or a descriptor that makes one


@dataclass(frozen=True, slots=True)
class CallTarget:
    """A function, and the namespace that holds it.

    Attributes:
        owner: The module or class.
        name: Its name there.
        function: What the namespace holds; of a method it is the descriptor, not what reading the
            attribute makes of it, so that it can be put back unchanged.
    """

    owner: Namespace
    name: str
    function: Function


def target_problem(target: str) -> str | None:
    """Return why `target` cannot be found, as far as is known without importing anything.

    Args:
        target: ``module:function`` or ``module:Class.method``.
    """
    module, _, path = target.partition(":")
    if module in sys.modules:
        try:
            _find(sys.modules[module], path)
        except SettingError as error:
            return str(error)
        return None
    search: Sequence[str] | None = None
    parts = module.split(".")
    for index, part in enumerate(parts):
        name = ".".join(parts[: index + 1])
        spec = importlib.machinery.PathFinder.find_spec(name, search)
        if spec is None and name not in sys.modules and name not in sys.builtin_module_names:
            siblings = [each.name for each in pkgutil.iter_modules(search)]
            parent = f"{'.'.join(parts[:index])}." if index else ""
            siblings += [] if parent else [each for each in sys.modules if "." not in each]
            return f"there is no module {name!r}{_nearest(part, siblings, parent)}"
        search = spec.submodule_search_locations if spec else None
    return None


def load_target(target: str) -> CallTarget:
    """Import the module of `target` and return its function.

    Raises:
        SettingError: There is none; names the nearest.
    """
    module, _, path = target.partition(":")
    if problem := target_problem(target):
        raise SettingError(problem)
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise SettingError(f"the module {module!r} cannot be imported", seen=repr(error)) from error
    return _find(found, path)


def _find(module: Namespace, path: str) -> CallTarget:
    """Return the function at `path` in `module`.

    Raises:
        SettingError: There is none; names the nearest.
    """
    owner = found = module
    parts = path.split(".")
    for index, part in enumerate(parts):
        owner, where = found, ".".join(parts[:index])
        if not hasattr(owner, part):
            name = getattr(module, "__name__", module)
            namespace = f"{name}{f':{where}' if where else ''}"
            prefix = f"{where}." if where else ""
            nearest = _nearest(part, dir(owner), prefix)
            raise SettingError(f"there is no {part!r} in {namespace}{nearest}")
        found = getattr(owner, part)
    if isinstance(found, type):
        raise SettingError(f"{path!r} is a class: name a method of it, as {path + '.__init__'!r}")
    if not callable(found):
        raise SettingError(f"{path!r} cannot be called: it is {type(found).__name__}")
    if isinstance(owner, type):
        found = inspect.getattr_static(owner, parts[-1], found)
    return CallTarget(owner, parts[-1], found)


def _nearest(name: str, names: Iterable[str], prefix: str) -> str:
    near = difflib.get_close_matches(name, list(names), n=3)
    return f"; the nearest: {', '.join(prefix + each for each in near)}" if near else ""
