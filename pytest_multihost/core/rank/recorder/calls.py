"""Record calls of a runtime's functions as operations, from the begin of a call to its end."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, update_wrapper
from hashlib import blake2s
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from pytest_multihost.core.cpython_private import handler_of, is_covered
from pytest_multihost.core.model.fault import UNHANDLED, ErrorPath
from pytest_multihost.core.model.operation import RUNTIME_SCOPE, Scope
from pytest_multihost.core.model.recorded_point import ASKS
from pytest_multihost.core.model.stack import Frame, is_library, is_ours
from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_groups import Function

Begin = Callable[[], int]
"""Records that a call begins; returns the record."""

Described = tuple[Begin, Callable[[object], object]]
"""What records the begin of a call, and what gets its result."""

Describe = Callable[..., Described | None]
"""Gets the arguments of a call; returns None if it is not to be recorded."""


class _Depth(threading.local):
    """How many recorded calls this thread is in: what these call is not the user's."""

    count = 0


@dataclass(slots=True, eq=False)
class Calls:
    """Records calls."""

    recorder: Recorder
    _depth: _Depth = field(default_factory=_Depth)
    _waits: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def are_nested(self) -> bool:
        """Whether this thread is in a recorded call already."""
        return self._depth.count > 0

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
            self._depth.count += 1
            try:
                with self.recorder.during(record), self.recorder.inside():
                    result = original(*args, **kwargs)
            finally:
                self._depth.count -= 1
            with contextlib.suppress(Exception):  # a group without this rank
                made(result)
            return result

        return recorded

    def recorded_by_name(self, describe: Describe, original: Function) -> Function:
        """Wrap a Python function; `describe` gets its arguments by their names."""
        bind = inspect.signature(original).bind
        return self.recorded(lambda *args, **kw: describe(**bind(*args, **kw).arguments), original)

    def begin(
        self, name: str, scope: Scope | None, *, detail: str = "", timeout: object = None
    ) -> Begin:
        """Describe an operation of all ranks; without a scope, a wait for unknown ranks."""
        return partial(
            self.recorder.begin,
            name,
            "collective" if scope else "wait",
            self.recorder.all_ranks,
            scope=scope or RUNTIME_SCOPE,
            sequence=0 if scope else next(self._waits),
            detail=detail,
            timeout_s=seconds(timeout),
        )


def seconds(timeout: object) -> float | None:
    """Return a duration in seconds, if it is one."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None


def replace_function(
    module: ModuleType | type, name: str, wrap: Callable[[Function], Function]
) -> None:
    """Wrap a function of torch's, also where it has been imported by name.

    torch's decorators keep the decorated function in a closure cell. Whoever imported the
    decorated one by name calls through that cell, so the cell's content is replaced.
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


def _trampoline(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - whatever jax's does
    __tracebackhide__ = True
    return _trampoline(*args, **kwargs)  # this name is replaced, see replace_code


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


# What an exception that leaves a call meets on its way: it fails the test, or may be handled.
#
# An exception goes from frame to frame. What each does about it is in the exception table of its
# code: the instructions that a `try` or a `with` covers.


_OWN = f"{Path(__file__).parent}/"
_CALLS = {("python.py", "pytest_pyfunc_call"), ("fixtures.py", "call_fixture_func")}
"""Where pytest calls a test or a fixture; others of its functions, say `raises`, handle errors."""
_NAMES_OF_CALLS = frozenset(name for _, name in _CALLS)
_covered: dict[tuple[CodeType, int], bool] = {}


def fails_test(frame: FrameType | None, runtime: str = "") -> bool:
    """Return whether an exception from the call that `frame` is in certainly fails the test.

    It does if it reaches pytest's call of the test, or of a fixture: no frame in between is in a
    `try` or a `with`, whatever these do with it. Not known in other threads, in coroutines and in
    programs that pytest does not call.

    Args:
        frame: The innermost frame.
        runtime: Directory of the runtime: its own functions pass on what they handle.
    """
    own = (_OWN, runtime) if runtime else (_OWN,)
    while frame is not None:
        code = frame.f_code
        if _is_call_of_test(code):
            return True
        if not code.co_filename.startswith(own):
            key = code, frame.f_lasti
            if key not in _covered:
                _covered[key] = is_covered(*key)
            if _covered[key]:
                return False
        frame = frame.f_back
    return False


# Which way an exception takes


def error_path(frame: FrameType | None) -> ErrorPath:
    """Return the way of an exception from the call that `frame` is in.

    It is equal for two calls if the same handler is the first that may end such an exception, and
    is called in the same way: then what follows is the same, whichever of the calls raised. It says
    which handler of which code that is, and at which instructions all frames further out are; what
    is further in is left without a trace. `UNHANDLED`: none, up to pytest's call of the test.

    What closes a file at the end of a `with` passes each exception on, and so does this package.
    Any other `with`, `finally` and `except` of the user's counts as a handler, whatever it does
    with it: then two calls may have different ways although they end alike, never the other way
    round. Handlers of libraries raise again, mostly another exception, but for functions that ask
    (`ASKS`): so of a library there is only the function that the user has called.
    """
    entered: list[str] = []
    while frame is not None and not _is_call_of_test(frame.f_code):
        code = frame.f_code
        handler = None if is_ours(code.co_filename) else handler_of(code, frame.f_lasti)
        if handler is not None:
            if not is_library(code.co_filename) or code.co_name in ASKS:
                outside = _text(_positions(frame.f_back))
                return ErrorPath(tuple(entered), code.co_qualname, f"{handler} {outside}")
            frame = _entry(frame)
            entered.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return ErrorPath(tuple(entered), UNHANDLED)


def user_frames(frame: FrameType | None) -> Iterator[Frame]:
    """Yield where the user's functions are, innermost first, up to pytest's call of the test."""
    while frame is not None and not _is_call_of_test(frame.f_code):
        code = frame.f_code
        if not is_library(code.co_filename):
            yield Frame(code.co_filename, frame.f_lineno or 0, code.co_name)
        frame = frame.f_back


def callers(frame: FrameType | None) -> tuple[int, ...]:
    """Return numbers for the instructions that all frames are at, up to pytest's call of the test.

    They are equal for two calls that come from the same places, as long as their code lives.
    """
    found: list[int] = []
    while frame is not None and frame.f_code.co_name not in _NAMES_OF_CALLS:
        found += (id(frame.f_code), frame.f_lasti)
        frame = frame.f_back
    return tuple(found)


def _entry(frame: FrameType) -> FrameType:
    """Return the frame of the function of a library that the user's code has called."""
    while (outer := frame.f_back) is not None and not _is_call_of_test(outer.f_code):
        if not is_library(outer.f_code.co_filename):
            break
        frame = outer
    return frame


def _is_call_of_test(code: CodeType) -> bool:
    directory, _, file = code.co_filename.rpartition("/")
    return directory.endswith("/_pytest") and (file, code.co_name) in _CALLS


def _positions(frame: FrameType | None) -> Iterator[tuple[str, int, int]]:
    """Yield at which instruction each frame is, up to pytest's call of the test."""
    while frame is not None and not _is_call_of_test(frame.f_code):
        code = frame.f_code
        yield code.co_filename, code.co_firstlineno, frame.f_lasti
        frame = frame.f_back


def _text(positions: Iterator[tuple[str, int, int]]) -> str:
    return blake2s(repr([*positions]).encode(), digest_size=6).hexdigest()
