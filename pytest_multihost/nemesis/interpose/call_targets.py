"""Find the function that ``at.call("module:function")`` names, or the names nearest to it."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_multihost.model.errors import SettingError

Namespace = Any
"""A module, a class, or an object that stands for a module in sys.modules."""

Function = Any
"""A function, or a descriptor that makes one."""


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
            return _no_module(name, part, search)
        search = spec.submodule_search_locations if spec else None
    return None


def _no_module(name: str, part: str, search: Sequence[str] | None) -> str:
    parent = name.rpartition(".")[0]
    siblings = [each.name for each in pkgutil.iter_modules(search)]
    if not parent:
        siblings += [each for each in sys.modules if "." not in each]
    prefix = f"{parent}." if parent else ""
    return f"there is no module {name!r}{_nearest(part, siblings, prefix)}"


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
    owner: Namespace = module
    parts = path.split(".")
    for index, part in enumerate(parts):
        where = ".".join(parts[:index])
        if not hasattr(owner, part):
            namespace = f"{_name_of(module)}{f':{where}' if where else ''}"
            prefix = f"{where}." if where else ""
            nearest = _nearest(part, dir(owner), prefix)
            raise SettingError(f"there is no {part!r} in {namespace}{nearest}")
        if index < len(parts) - 1:
            owner = getattr(owner, part)
    found = getattr(owner, parts[-1])
    if isinstance(found, type):
        happened = f"{path!r} is a class: name a method of it, as {path + '.__init__'!r}"
        raise SettingError(happened)
    if not callable(found):
        raise SettingError(f"{path!r} cannot be called: it is {type(found).__name__}")
    return CallTarget(owner, parts[-1], _raw_attribute(owner, parts[-1]))


def _raw_attribute(owner: Namespace, name: str) -> Function:
    """Return what a namespace holds under `name`, without binding it as getattr() does."""
    for each in getattr(owner, "__mro__", (owner,)):
        if name in vars(each):
            return vars(each)[name]
    return getattr(owner, name)  # of a module with __getattr__


def _name_of(module: Namespace) -> str:
    return str(getattr(module, "__name__", module))


def _nearest(name: str, names: Iterable[str], prefix: str) -> str:
    near = difflib.get_close_matches(name, list(names), n=3)
    return f"; the nearest: {', '.join(prefix + each for each in near)}" if near else ""
