"""Have a function say when it is called, wherever it has been imported by name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from pytest_multihost.model.errors import SettingError
from pytest_multihost.nemesis.interpose import CallTarget

OnCall = Callable[[str], None]
"""Gets "before" and "after"."""

_OURS = "pytest_multihost"


def watch_calls(
    target: CallTarget, on_call: OnCall, undoing: ExitStack, *, beside: Iterable[Any] = ()
) -> None:
    """Have `on_call` called before and after each call of a function.

    Args:
        target: The function.
        on_call: What it raises takes the place of the call, or of its result.
        undoing: Puts the function back, also where it is imported by name in the meantime.
        beside: Modules that are not in `sys.modules`.

    Raises:
        SettingError: It cannot be replaced where it is kept.
    """
    beside = tuple(beside)
    watched = _watched(target.function, on_call)
    is_own = target.name in vars(target.owner)
    try:
        setattr(target.owner, target.name, watched)
    except (AttributeError, TypeError) as error:
        happened = f"{target.name!r} of {target.owner!r} cannot be replaced"
        raise SettingError(happened, seen=str(error)) from error
    if is_own:
        undoing.callback(setattr, target.owner, target.name, target.function)
    else:  # inherited, or made by the module's __getattr__
        undoing.callback(delattr, target.owner, target.name)
    if not isinstance(target.owner, type):
        _replace_names(target.function, watched, beside)
        undoing.callback(_replace_names, watched, target.function, beside)


def _replace_names(old: object, new: object, beside: Iterable[Any]) -> None:
    """Put `new` wherever a module has `old` under a name of its own; our own modules keep it."""
    for module in (*sys.modules.copy().values(), *beside):
        for name in list(_names_of(module, old)):
            setattr(module, name, new)


def _names_of(module: Any, value: object) -> Iterator[str]:  # noqa: ANN401 - or what poses as one
    names = getattr(module, "__dict__", None)
    owner = names.get("__name__") if isinstance(names, dict) else None
    if not isinstance(names, dict) or str(owner).partition(".")[0] == _OURS:
        return
    yield from (name for name, found in names.copy().items() if found is value)


def _watched(function: Any, on_call: OnCall) -> Any:  # noqa: ANN401 - a function or a descriptor
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_watched(function.__func__, on_call))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the original
            __tracebackhide__ = True
            on_call("before")
            try:
                return await function(*args, **kwargs)
            finally:
                on_call("after")

        return coroutine

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the original
        __tracebackhide__ = True
        on_call("before")
        try:
            return function(*args, **kwargs)
        finally:
            on_call("after")

    return wrapper
