"""What an exception that leaves a call meets on its way: it fails the test, or may be handled.

An exception goes from frame to frame. What each does about it is in the exception table of its
code (CPython's InternalDocs/exception_handling.md): the instructions that a `try` or a `with`
covers.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2s
from pathlib import Path
from types import CodeType, FrameType

from pytest_multihost.core.cpython_private import handler_of, is_covered
from pytest_multihost.core.model.fault import UNHANDLED, ErrorPath
from pytest_multihost.core.model.recorded_point import ASKS
from pytest_multihost.core.model.stack import is_library, is_ours

_OWN = f"{Path(__file__).parent}/"
_CALLS = {("python.py", "pytest_pyfunc_call"), ("fixtures.py", "call_fixture_func")}
"""Where pytest calls a test or a fixture; others of its functions, say `raises`, handle errors."""
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
