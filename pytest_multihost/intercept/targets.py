"""Find the functions and data loaders that points name, and replace them."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import inspect
import math
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_multihost.core.model.errors import SettingError

Namespace = Any  # a module, a class, or an object that replaces a module in sys.modules
Function = Any  # a function, or a descriptor that makes one


class Replaced(BaseException):
    """Raised by a fault at a call to make the call return another value.

    Attributes:
        value: The value that the call returns.
    """

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value

    def of(self, result: Any) -> object:  # noqa: ANN401 - the user's
        """Return the value; a number in place of an array or tensor in the shape of `result`.

        A truth value takes the place of an array of truth values only.
        """
        value, is_array = self.value, hasattr(result, "dtype") and hasattr(result, "shape")
        if not is_array or not isinstance(value, int | float):
            return value
        if "bool" in str(result.dtype):
            return (result ^ result) | bool(value)
        if isinstance(value, bool):
            return value
        # A tensor keeps its history, and the gradients of NaN are NaN.
        return result * value if math.isnan(value) else result * 0 + value


@dataclass(frozen=True, slots=True)
class CallTarget:
    """A function, and the namespace that holds it.

    Attributes:
        function: The object in the namespace; for a method, the descriptor and not the attribute's
            value, so that it can be put back unchanged.
    """

    owner: Namespace
    name: str
    function: Function


@dataclass(frozen=True, slots=True)
class LoaderTarget:
    """A data loader, or a class or function that makes one.

    Attributes:
        found: The loader, a class whose objects are loaders, or a function that returns one.
        call: The function's location; None if `found` is not a function.
    """

    found: Any  # whatever is there
    call: CallTarget | None


def replace_names(
    pairs: Iterable[tuple[object, object]],
    more_modules: Iterable[object] = (),
    *,
    spares: Callable[[str], bool] = lambda _: False,
) -> None:
    """Replace objects, given as pairs of old and new, in every module that holds them by any name.

    This package's modules and pytest's keep the original: the harness's calls are not the test's.
    So do modules whose file it `spares`.
    """
    new_by_id = {id(old): (old, new) for old, new in pairs}
    for module in (*sys.modules.copy().values(), *more_modules):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        if str(names.get("__name__")).partition(".")[0] in ("pytest_multihost", "_pytest"):
            continue
        if spares(str(names.get("__file__"))):
            continue
        for name, found in names.copy().items():
            if (pair := new_by_id.get(id(found))) is not None:
                setattr(module, name, pair[1])


def target_problem(target: str, *, is_loader: bool = False) -> str | None:
    """Return why `target` cannot be found, as far as is known without importing anything.

    Args:
        target: ``module:function`` or ``module:Class.method``, or ``module:loader``.
        is_loader: Whether a data loader is meant.
    """
    module, _, path = target.partition(":")
    if module in sys.modules:
        try:
            (_find_loader if is_loader else _find)(sys.modules[module], path)
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
    return _find(*_load_module(target))


def load_loader(target: str) -> LoaderTarget:
    """Import the module of `target` and return its data loader.

    Raises:
        SettingError: There is none; names the nearest.
    """
    return _find_loader(*_load_module(target, is_loader=True))


def _load_module(target: str, *, is_loader: bool = False) -> tuple[Namespace, str]:
    """Import the module of `target`; return it, and the path in it."""
    module, _, path = target.partition(":")
    if problem := target_problem(target, is_loader=is_loader):
        raise SettingError(problem)
    try:
        return importlib.import_module(module), path
    except Exception as error:
        raise SettingError(f"the module {module!r} cannot be imported", seen=repr(error)) from error


def _find_loader(module: Namespace, path: str) -> LoaderTarget:
    owner, found = _look_up(module, path)
    kind = found if isinstance(found, type) else type(found)
    if hasattr(kind, "__iter__") or hasattr(kind, "__next__"):
        if kind.__module__ == "builtins":
            raise SettingError(
                f"{path!r} is a {kind.__name__}, whose use the plugin cannot observe"
            )
        return LoaderTarget(found, None)
    return LoaderTarget(found, _function(owner, path, found))


def _find(module: Namespace, path: str) -> CallTarget:
    """Return the function at `path` in `module`.

    Raises:
        SettingError: There is none; names the nearest.
    """
    owner, found = _look_up(module, path)
    return _function(owner, path, found)


def _look_up(module: Namespace, path: str) -> tuple[Namespace, object]:
    """Return the owner of the object at `path` in `module`, and the object.

    Raises:
        SettingError: There is nothing; names the nearest.
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
    return owner, found


def _function(owner: Namespace, path: str, found: Function) -> CallTarget:
    if isinstance(found, type):
        raise SettingError(f"{path!r} is a class: name a method of it, as {path + '.__init__'!r}")
    if not callable(found):
        raise SettingError(f"{path!r} cannot be called: it is {type(found).__name__}")
    name = path.rpartition(".")[2]
    if isinstance(owner, type):
        found = inspect.getattr_static(owner, name, found)
    return CallTarget(owner, name, found)


def _nearest(name: str, names: Iterable[str], prefix: str) -> str:
    near = difflib.get_close_matches(name, list(dict.fromkeys(names)), n=3)
    return f"; the nearest: {', '.join(prefix + each for each in near)}" if near else ""
