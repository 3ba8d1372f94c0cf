"""Find the handlers that an exception from a call would meet, and whether it fails the test.

An exception goes from frame to frame. The exception table of a frame's code shows which
instructions a `try` or a `with` covers (CPython's InternalDocs/exception_handling.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2s
from pathlib import Path
from types import CodeType, FrameType

from pytest_multihost.core.cpython_private import handler_of, is_covered
from pytest_multihost.core.model.fault import UNHANDLED, ErrorPath
from pytest_multihost.core.model.recorded_point import ASKS
from pytest_multihost.core.model.stack import Frame, is_library, is_ours

_OWN = f"{Path(__file__).parent}/"
_CALLS = {("python.py", "pytest_pyfunc_call"), ("fixtures.py", "call_fixture_func")}
"""Functions with which pytest calls a test or a fixture; others, like `raises`, handle errors."""
_MAX_FRAMES = 16
_covered: dict[tuple[CodeType, int], bool] = {}


def fails_test(frame: FrameType | None, runtime: str = "") -> bool:
    """Return whether an exception from the call that `frame` is in certainly fails the test.

    It does if no frame between here and pytest's call of the test or fixture is in a `try` or a
    `with`, whatever these do with it. The answer is False in other threads, in coroutines, and in
    programs that pytest does not call.

    Args:
        runtime: Directory of the runtime, whose own functions raise the errors they handle again.
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
    """Return the path of an exception from the call that `frame` is in.

    Two calls have equal paths if the same handler is the first that may end their exceptions, and
    all frames outside of it are at the same instructions. Then the test continues in the same way,
    whichever of the calls raised. The frames inside the handler do not matter. `UNHANDLED` means
    that no frame up to pytest's call of the test may end the exception.

    A `with` that only closes a file raises each exception again, and so does this package. Any
    other `with`, `finally` or `except` in the user's code counts as a handler, whatever it does. So
    two paths may differ although both calls end alike, but never the other way round. Handlers of
    libraries raise again, usually another exception, except in functions of `ASKS`. So the path
    names only those functions of a library that the user's code has called.
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


def user_frames(frame: FrameType | None) -> tuple[Frame, ...]:
    """Return the frames of the user's code from `frame` to pytest's call of the test.

    They are innermost first, at most `_MAX_FRAMES`.
    """
    found: list[Frame] = []
    while frame is not None and not _is_call_of_test(frame.f_code) and len(found) < _MAX_FRAMES:
        file = frame.f_code.co_filename
        if not is_library(file):
            found.append(Frame(file, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


def _entry(frame: FrameType) -> FrameType:
    """Return the frame of the library function that the user's code has called."""
    while (outer := frame.f_back) is not None and not _is_call_of_test(outer.f_code):
        if not is_library(outer.f_code.co_filename):
            break
        frame = outer
    return frame


def _is_call_of_test(code: CodeType) -> bool:
    directory, _, file = code.co_filename.rpartition("/")
    return directory.endswith("/_pytest") and (file, code.co_name) in _CALLS


def _positions(frame: FrameType | None) -> Iterator[tuple[str, int, int]]:
    """Yield the instruction that each frame is at, up to pytest's call of the test."""
    while frame is not None and not _is_call_of_test(frame.f_code):
        code = frame.f_code
        yield code.co_filename, code.co_firstlineno, frame.f_lasti
        frame = frame.f_back


def _text(positions: Iterator[tuple[str, int, int]]) -> str:
    return blake2s(repr([*positions]).encode(), digest_size=6).hexdigest()
