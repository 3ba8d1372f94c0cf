"""Record calls of a runtime's functions as operations, from the start of a call to its end."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, update_wrapper
from types import FunctionType, ModuleType
from typing import Any

from pytest_multihost.core.model.operation import RUNTIME_SCOPE, Scope
from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_groups import Argument, Function

Begin = Callable[[], int]
"""Records that a call begins; returns the record."""

Described = tuple[Begin, Callable[[object], object]]
"""A function that records the start of a call, and a function that gets the call's result."""

Describe = Callable[..., Described | None]
"""Gets the arguments of a call; returns None if the call is not to be recorded."""


class _Depth(threading.local):
    """How many recorded calls this thread is in; calls made by these are not the user's."""

    count = 0


@dataclass(slots=True, eq=False)
class Calls:
    """Records calls."""

    recorder: Recorder
    _depth: _Depth = field(default_factory=_Depth)
    _waits: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def are_nested(self) -> bool:
        """Whether this thread is already in a recorded call."""
        return self._depth.count > 0

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Regard the calls of this thread in the block as made by a recorded call."""
        self._depth.count += 1
        try:
            yield
        finally:
            self._depth.count -= 1

    def recorded(self, describe: Describe, original: Function) -> Function:
        """Wrap a function; `describe` gets its arguments."""

        def recorded(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            described = None
            with contextlib.suppress(Exception):  # arguments that torch will refuse
                described = describe(*args, **kwargs)
            if described is None:
                return original(*args, **kwargs)
            begin, made = described
            record = begin()
            with self.nested(), self.recorder.during(record), self.recorder.inside():
                result = original(*args, **kwargs)
            with contextlib.suppress(Exception):  # a group without this rank
                made(result)
            return result

        return recorded

    def recorded_by_name(self, describe: Describe, original: Function) -> Function:
        """Wrap a Python function; `describe` gets its arguments by their names."""
        bind = inspect.signature(original).bind
        return self.recorded(lambda *args, **kw: describe(**bind(*args, **kw).arguments), original)

    def begin(
        self,
        name: str,
        scope: Scope | None,
        *,
        size: int | None = None,
        detail: str = "",
        timeout: object = None,
        at: Scope | None = None,
    ) -> Begin:
        """Describe an operation of all ranks; without a scope, a wait for an unknown one of them.

        Args:
            size: How many members take part if they are not the ranks of this world; 0: unknown.
            at: The scope of a wait at a store that perhaps not all ranks use.
        """
        return partial(
            self.recorder.begin,
            name,
            "collective" if scope else "wait",
            self.recorder.all_ranks if size is None else size,
            scope=scope or at or RUNTIME_SCOPE,
            sequence=0 if scope else next(self._waits),
            detail=detail,
            timeout_s=seconds(timeout),
        )


def seconds(timeout: object) -> float | None:
    """Return a duration in seconds; None if `timeout` is not a duration."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None


def replace_function(
    module: ModuleType | type, name: str, wrap: Callable[[Function], Function]
) -> None:
    """Wrap a function of torch, even for modules that have imported it by name.

    torch's decorators keep the decorated function in a closure cell. Every call of the decorated
    function goes through that cell, so the cell's content is replaced.
    """
    function = getattr(module, name, None)
    if function is None:
        return
    while True:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cell = cells.get("func")
        if cell is None:
            setattr(module, name, update_wrapper(wrap(function), function))
            return
        inner = cell.cell_contents
        if "func" not in inner.__code__.co_freevars:
            cell.cell_contents = update_wrapper(wrap(inner), inner)
            return
        function = inner


def replace_original(function: FunctionType, by: Argument) -> None:
    """Run another function in place of a function that `replace_code` wraps, before or later.

    Args:
        by: A function without variables of an outer one, whose globals are not available.
    """
    original = vars(function).get("__wrapped__", function)
    original.__code__ = by.__code__
    original.__defaults__, original.__kwdefaults__ = by.__defaults__, by.__kwdefaults__


def _trampoline(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - whatever jax's does
    __tracebackhide__ = True
    return _trampoline(*args, **kwargs)  # replace_code replaces this name


def replace_code(function: FunctionType, wrap: Callable[[Function], Function]) -> None:
    """Make `function` run a wrapper of itself, but keep its identity for earlier imports.

    Its code is replaced by a trampoline that calls the wrapper under a new name in the module's
    globals; the wrapper calls a copy of the function with the original code.
    """
    key = f"_recorded_{function.__name__}"
    names = function.__globals__
    if key in names:
        names[key] = wrap(names[key])
        return
    defaults, closure = function.__defaults__, function.__closure__
    original = FunctionType(function.__code__, names, function.__name__, defaults, closure)
    original.__kwdefaults__ = function.__kwdefaults__
    update_wrapper(original, function)
    del vars(original)["__wrapped__"]
    names[key] = wrap(original)
    vars(function)["__wrapped__"] = original  # for inspect.signature
    function.__code__ = _trampoline.__code__.replace(
        co_names=(key,), co_name=function.__name__, co_qualname=function.__qualname__
    )
