"""Call back at each call of a function, wherever it has been imported by name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from pytest_multihost.model.errors import SettingError
from pytest_multihost.nemesis.interpose import CallTarget

Module = Any
"""A module, or an object that stands for one in sys.modules."""

Function = Any
"""A function or a descriptor that makes one."""


OnCall = Callable[[str], None]
"""Gets "before" and "after"."""

_PACKAGE = "pytest_multihost"


def wrap_calls(
    target: CallTarget, on_call: OnCall, undoing: ExitStack, *, more_modules: Iterable[Module] = ()
) -> None:
    """Call `on_call` before and after each call of a function.

    Args:
        target: The function.
        on_call: What it raises takes the place of the call, or of its result.
        undoing: Puts the function back, also where it is imported by name in the meantime.
        more_modules: Modules that are not in `sys.modules`.

    Raises:
        SettingError: It cannot be replaced where it is kept.
    """
    more_modules = tuple(more_modules)
    wrapper = _wrapped(target.function, on_call)
    is_own = target.name in vars(target.owner)
    try:
        setattr(target.owner, target.name, wrapper)
    except (AttributeError, TypeError) as error:
        happened = f"{target.name!r} of {target.owner!r} cannot be replaced"
        raise SettingError(happened, seen=str(error)) from error
    if is_own:
        undoing.callback(setattr, target.owner, target.name, target.function)
    else:  # inherited, or made by the module's __getattr__
        undoing.callback(delattr, target.owner, target.name)
    if not isinstance(target.owner, type):
        _replace_names(target.function, wrapper, more_modules)
        undoing.callback(_replace_names, wrapper, target.function, more_modules)


def _replace_names(old: object, new: object, more_modules: Iterable[Module]) -> None:
    """Put `new` wherever a module has `old` under a name of its own.

    The modules of this package keep the original: the harness's own calls are not the test's.
    """
    for module in (*sys.modules.copy().values(), *more_modules):
        for name in list(_names_of(module, old)):
            setattr(module, name, new)


def _names_of(module: Module, value: object) -> Iterator[str]:
    names = getattr(module, "__dict__", None)
    owner = names.get("__name__") if isinstance(names, dict) else None
    if not isinstance(names, dict) or str(owner).partition(".")[0] == _PACKAGE:
        return
    yield from (name for name, found in names.copy().items() if found is value)


def _wrapped(function: Function, on_call: OnCall) -> Function:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_wrapped(function.__func__, on_call))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            on_call("before")
            try:
                return await function(*args, **kwargs)
            finally:
                on_call("after")

        return coroutine

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        __tracebackhide__ = True
        on_call("before")
        try:
            return function(*args, **kwargs)
        finally:
            on_call("after")

    return wrapper
