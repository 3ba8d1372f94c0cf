"""What every rank does, whatever it runs: it starts, reports, waits at gates, and leaves."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from os import _exit, getpid  # by name: a test may replace them in their module
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from pytest_multihost.core.backends import Backend
from pytest_multihost.core.cpython_private import run_exit_handlers
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.errors import WorldBrokenError
from pytest_multihost.core.model.event import (
    Gate,
    Hello,
    Interrupted,
    RaisedError,
    RankEventBody,
    event_header,
    now,
)
from pytest_multihost.core.model.messages import FaultPerformed, Release
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.model.stack import (
    Frame,
    innermost_package_frame,
    innermost_user_frame,
    is_library,
    relative_to,
)
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.rank.after_fork import reset_after_fork, save_coverage, stop_tqdm_monitor
from pytest_multihost.core.rank.points import delay_start
from pytest_multihost.core.rank.recorder import start_recording
from pytest_multihost.core.rank.services import join_services

# Exceptions of a rank as values for the controller.
#
# Exceptions are sent as text. Their objects stay in the rank: many cannot be pickled, and a few
# cannot even be printed.


_MAX_MESSAGE = 20_000
"""Characters of an exception's message that are kept."""

_MAX_CAUSES = 8
_MAX_CAUSE = 2_000
"""How many of the exceptions that caused one are kept, and how many characters of each."""


def raised_error(error: BaseException, *, root: str, text: str) -> RaisedError:
    """Describe an exception.

    Args:
        error: The exception.
        root: pytest's rootdir; files below it are named relative to it.
        text: The representation that pytest made of it.
    """
    trace = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [Frame(code.co_filename, line, code.co_name) for code, line in reversed(trace)]
    frame, inside = innermost_user_frame(frames), innermost_package_frame(frames)
    causes, seen = [], [error]  # what caused it, the last first
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
    )


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _message(error: BaseException, limit: int = _MAX_MESSAGE) -> str:
    try:
        return shortened(str(error), limit)
    except BaseException as second:  # noqa: BLE001 - any user's __str__ can raise anything
        return f"<its str() raises {type(second).__name__}>"


def shortened(text: str, limit: int = _MAX_MESSAGE) -> str:
    """Return `text`, or its head and tail and how much was left out between them."""
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
    """Return the traceback of `error` from the user's first frame on, however hard to print."""
    trace = trimmed_traceback(error)
    try:
        return shortened("".join(traceback.format_exception(type(error), error, trace)))
    except BaseException:  # noqa: BLE001 - any user's __str__ can raise anything
        frames = "".join(traceback.format_tb(trace))
        name = _type_name(type(error))
        return f"Traceback (most recent call last):\n{frames}{name}: {_message(error)}"


def clear_frames(error: BaseException | None) -> None:
    """Release what the frames of an exception hold.

    After a MemoryError there may be no memory left to describe it with, nor to remember what has
    been cleared: code may make a circle of contexts, so only so many are followed.
    """
    left = 100
    while error is not None and left:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
        left -= 1


@dataclass(slots=True)
class ControllerLink:
    """Sends events with the time at which they happened, and waits for the controller's answers."""

    channel: Channel

    def send(self, body: RankEventBody, at_s: float | None = None) -> None:
        """Send an event that has happened at `at_s`, or now."""
        self.channel.send(event_header(body, now() if at_s is None else at_s))

    def await_gate(self, gate: Gate) -> None:
        """Wait until the controller opens `gate`."""
        self.channel.receive(lambda message: message == Release(gate))

    def await_performed(self, index: int) -> str:
        """Wait until a fault has been performed from outside; return what went wrong."""
        found = self.channel.receive(
            lambda message: isinstance(message, FaultPerformed) and message.index == index
        ).message
        return found.error if isinstance(found, FaultPerformed) else ""


def start_rank(spec: RankSpec, channel: Channel) -> None:
    """Make this process the rank: from now on it can be asked for its stacks."""
    join_services(spec)  # first: all times that this rank tells are the world's
    reset_after_fork(spec)
    start_recording(spec)
    stop_tqdm_monitor()
    ControllerLink(channel).send(Hello(getpid()))


def start_backend(spec: RankSpec, channel: Channel, backend: Backend) -> None:
    """Start the backend; if that fails, send the error and leave."""
    with sending_errors(channel, root=str(Path.cwd())):
        delay_start(spec, ControllerLink(channel).send)
        backend.start(spec)


@contextlib.contextmanager
def sending_errors(channel: Channel, *, root: str) -> Iterator[None]:
    """Send the controller whatever is raised in the block, and end the rank there."""
    try:
        yield
    except EOFError:  # the controller is gone: there is no reader for a report
        _exit(1)
    except BaseException as error:  # noqa: BLE001 - pytest.exit(), Ctrl-C, a plugin's error
        send_interrupted(channel, error, root=root)


def send_interrupted(
    channel: Channel, error: BaseException, *, root: str, is_expected: bool = False
) -> NoReturn:
    """Send the exception that kept this rank from a report, and leave.

    Args:
        channel: The connection to the controller.
        error: The exception.
        root: pytest's rootdir.
        is_expected: Whether the test's xfail mark expects it.
    """
    link = ControllerLink(channel)
    clear_frames(error)
    raised = raised_error(error, root=root, text=format_exception(error))
    link.send(Interrupted(raised, is_expected))
    leave(link)


def leave(link: ControllerLink) -> NoReturn:
    """Wait for the exit gate, then end by `os._exit`, without the interpreter's shutdown.

    `sys.exit` would run the destructors of runtimes whose peers are leaving too: measured 40 times
    the CPU seconds, and jax's shutdown barrier on top, which hangs if a peer is dead. And a forked
    process would run the exit handlers of the controller. What the test itself registered with
    `atexit` still runs, coverage is saved by hand, and the standard streams are flushed by hand.
    """
    link.await_gate("exit")
    try:
        run_exit_handlers()
        save_coverage()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a test may have closed or replaced it
                stream.flush()
        _exit(0)
