"""Describe exceptions of a rank as values for the controller.

Their objects stay in the rank, because many cannot be pickled, and a few cannot even be printed.
"""

from __future__ import annotations

import traceback
from types import TracebackType

from pytest_multihost.core.cpython_private import is_raised_at
from pytest_multihost.core.model.errors import WorldBrokenError
from pytest_multihost.core.model.event import RaisedError
from pytest_multihost.core.model.stack import (
    Frame,
    innermost_package_frame,
    innermost_user_frame,
    is_library,
    relative_to,
)
from pytest_multihost.core.model.verdict import Place

_MAX_MESSAGE = 20_000
"""Maximum number of characters of an exception's message."""

_MAX_CAUSES = 8
_MAX_CAUSE = 2_000
"""How many causes of an exception are kept, and how many characters of each."""


def raised_error(error: BaseException, *, root: str, text: str) -> RaisedError:
    """Describe an exception.

    Args:
        root: pytest's rootdir; files below it are named relative to it.
    """
    trace = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    is_by_user = _is_raised_by_user(error.__traceback__)
    frames = [Frame(code.co_filename, line, code.co_name) for code, line in reversed(trace)]
    frame, inside = innermost_user_frame(frames), innermost_package_frame(frames)
    causes, seen = [], [error]  # causes, the last one first
    while len(seen) <= _MAX_CAUSES:
        cause = seen[-1].__cause__ or (
            None if seen[-1].__suppress_context__ else seen[-1].__context__
        )
        if cause is None or any(cause is each for each in seen):
            break
        seen.append(cause)
        causes.append(f"{type(cause).__name__}: {_message(cause, _MAX_CAUSE)}")
    return RaisedError(
        type=_type_name(type(error)),
        message=_message(error),
        file=relative_to(root, frame.file) if frame else None,
        line=frame.line if frame else None,
        function=frame.function if frame else None,
        text=text,
        library=Place(inside.file, inside.line, inside.function) if inside else None,
        causes=tuple(causes),
        is_harness_symptom=isinstance(error, WorldBrokenError),
        is_by_user=is_by_user,
    )


def _is_raised_by_user(trace: TracebackType | None) -> bool:
    """Return whether a raise statement of the user's own code made an exception."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or is_library(trace.tb_frame.f_code.co_filename):
        return False
    return is_raised_at(trace.tb_frame.f_code, trace.tb_lasti)


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _message(error: BaseException, limit: int = _MAX_MESSAGE) -> str:
    try:
        return shortened(str(error), limit)
    except BaseException as second:  # noqa: BLE001 - any user's __str__ can raise anything
        return f"<its str() raises {type(second).__name__}>"


def shortened(text: str, limit: int = _MAX_MESSAGE) -> str:
    """Return `text`, or its head and tail with the number of characters skipped between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = f"\n... {len(text) - 2 * half} characters left out ...\n"
    return text[:half] + left_out + text[-half:]


def trimmed_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of `error` from the user's first frame on, if there is one."""
    trace = error.__traceback__
    while trace is not None and is_library(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace or error.__traceback__


def format_exception(error: BaseException) -> str:
    """Return the traceback of `error` from the user's first frame on, even if its str() raises."""
    trace = trimmed_traceback(error)
    try:
        return shortened("".join(traceback.format_exception(type(error), error, trace)))
    except BaseException:  # noqa: BLE001 - any user's __str__ can raise anything
        frames = "".join(traceback.format_tb(trace))
        name = _type_name(type(error))
        return f"Traceback (most recent call last):\n{frames}{name}: {_message(error)}"


def clear_frames(error: BaseException | None) -> None:
    """Release the objects that the frames of an exception hold.

    After a MemoryError, memory may be needed to describe it.
    """
    left = 100  # contexts may form a cycle, and there may be no memory to remember which were seen
    while error is not None and left:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
        left -= 1
