"""Lists the functions whose calls a sweep's undisturbed run records."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from pytest_multihost.core.model.stack import is_library

MAX_FUNCTIONS = 2_000
"""The maximum of functions of the user's that are watched."""

_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_UNWATCHED = ("test", "pytest_", "__")
"""Beginnings of names: tests and hooks, which pytest calls, and methods that Python calls."""

OF_NUMBERS = ("math:isfinite", "math:isnan", "math:isinf")
OF_ARRAYS = ("torch:isfinite", "torch:isnan", "torch:isinf")
METHODS_OF_ARRAYS = (
    *("torch:Tensor.isfinite", "torch:Tensor.isnan", "torch:Tensor.isinf"),
    *("torch:Tensor.item", "torch:Tensor.__float__", "torch:Tensor.__bool__"),
)
"""Functions of libraries whose results the user's code decides by: those of one number, those of
arrays, and methods of arrays."""

OF_FILES = ("os.path:exists", "os.path:isfile", "pathlib:Path.exists", "pathlib:Path.is_file")
OF_CHANCE = ("random:random",)
OF_QUEUES = ("queue:Queue.empty",)

_OF_LIBRARIES = (
    *(*OF_NUMBERS, *OF_ARRAYS, *METHODS_OF_ARRAYS),
    *(*OF_FILES, *OF_CHANCE, *OF_QUEUES),
)
OF_LIBRARIES = frozenset(_OF_LIBRARIES)


@dataclass(frozen=True, slots=True)
class WatchedFunction:
    """A function, as an attribute of a module or class.

    Attributes:
        target: As ``module:function`` or ``module:Class.method``.
    """

    target: str
    owner: Any
    name: str
    function: Any


def functions_of_the_user() -> Iterator[WatchedFunction]:
    """Yield the functions and methods in the modules of the user's code, except generators.

    Those of the modules that were imported last come first: the test is among them.
    """
    count = 0
    for name, module in reversed(list(sys.modules.items())):
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not isinstance(file, str) or is_library(file):
            continue
        if vars(module).get("__name__") != name:
            continue  # another name for a module
        for found in _of_module(module):
            count += 1
            if count > MAX_FUNCTIONS:
                return
            yield found


def functions_of_libraries() -> Iterator[WatchedFunction]:
    """Yield the functions of libraries that are loaded and watched."""
    for target in _OF_LIBRARIES:
        module, _, path = target.partition(":")
        *owners, name = path.split(".")
        owner: Any = sys.modules.get(module)
        for each in owners:
            owner = getattr(owner, each, None)
        function = getattr(owner, name, None)
        if owner is not None and function is not None:
            yield WatchedFunction(target, owner, name, function)


def _of_module(module: ModuleType) -> Iterator[WatchedFunction]:
    owner = module.__name__
    for name, found in list(vars(module).items()):
        if isinstance(found, type) and found.__module__ == owner and found.__qualname__ == name:
            if not _is_of_torch(found):
                yield from _plain(f"{owner}:{name}.", found, vars(found).items())
        else:
            yield from _plain(f"{owner}:", module, [(name, found)])


def _plain(
    prefix: str,
    owner: Any,  # noqa: ANN401
    found: Iterable[tuple[str, object]],
) -> Iterator[WatchedFunction]:
    module, _, qualifier = prefix.partition(":")
    for name, each in list(found):
        if not isinstance(each, FunctionType) or name.startswith(_UNWATCHED):
            continue
        is_named_so = each.__module__ == module and each.__qualname__ == f"{qualifier}{name}"
        if is_named_so and not code_of(each).co_flags & _NOT_PLAIN:
            yield WatchedFunction(f"{prefix}{name}", owner, name, each)


def code_of(function: Any) -> Any:  # noqa: ANN401 - the user's
    """Return the code of a function, of a decorated function the original's."""
    return inspect.unwrap(function).__code__


def _is_of_torch(found: type) -> bool:
    """Return whether a class is a module or function of torch, which compilers may read."""
    return any(each.__module__.partition(".")[0] == "torch" for each in found.__mro__)
