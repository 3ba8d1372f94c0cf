"""Wrap the functions whose calls are points."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.intercept.targets import CallTarget, Replaced, replace_names

Function = Any
"""A function, or a descriptor that returns one."""

Returned = Callable[..., Any]
"""Gets the result and the arguments of a call; returns the result for its caller."""


def wrap_calls(
    target: CallTarget,
    on_call: Callable[[str], None],
    undoing: ExitStack,
    *,
    more_modules: Iterable[object] = (),
    returned: Returned = lambda result, *_, **__: result,
) -> None:
    """Call `on_call` before and after each call of a function.

    Args:
        on_call: Gets "before" and "after". If it raises, its exception replaces the call or the
            result; if it raises `Replaced`, the caller gets the value of that.
        undoing: Restores the function when it is closed, even in modules that have imported it by
            name meanwhile.
        more_modules: Modules that are not in `sys.modules`.
        returned: May change the result of the function.

    Raises:
        SettingError: The function's owner does not allow replacing it.
    """
    more_modules = tuple(more_modules)
    wrapper = _wrapped(target.function, on_call, returned)
    replace_attribute(target.owner, target.name, wrapper, undoing)
    if not isinstance(target.owner, type):
        replace_names([(target.function, wrapper)], more_modules)
        undoing.callback(replace_names, [(wrapper, target.function)], more_modules)


def replace_attribute(
    owner: Any,  # noqa: ANN401 - a module or class of the user's
    name: str,
    new: object,
    undoing: ExitStack,
) -> None:
    """Replace an attribute of a module or class until `undoing` is closed.

    Raises:
        SettingError: The owner does not allow it.
    """
    undo = partial(delattr, owner, name)  # inherited, or made by the module's __getattr__
    if name in vars(owner):
        undo = partial(setattr, owner, name, vars(owner)[name])
    try:
        setattr(owner, name, new)
    except (AttributeError, TypeError) as error:
        raise SettingError(f"{name!r} of {owner!r} cannot be replaced", seen=str(error)) from error
    undoing.callback(undo)


def _wrapped(function: Function, on_call: Callable[[str], None], returned: Returned) -> Function:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_wrapped(function.__func__, on_call, returned))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            result = None
            try:
                on_call("before")
                try:
                    result = await function(*args, **kwargs)
                finally:
                    on_call("after")
            except Replaced as instead:
                return instead.of(result)
            return returned(result, *args, **kwargs)

        return coroutine

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        __tracebackhide__ = True
        result = None
        try:
            on_call("before")
            try:
                result = function(*args, **kwargs)
            finally:
                on_call("after")
        except Replaced as instead:
            return instead.of(result)
        return returned(result, *args, **kwargs)

    return wrapper
