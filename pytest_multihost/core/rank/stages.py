"""The steps of every rank, whatever it runs: it starts, reports, waits at gates, and leaves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from os import _exit, getpid  # by name: a test may replace them in their module
from pathlib import Path
from typing import NoReturn

from pytest_multihost.core.backends import Backend
from pytest_multihost.core.cpython_private import run_exit_handlers
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.event import (
    Gate,
    Hello,
    Interrupted,
    RankEventBody,
    SentToService,
    event_header,
    now,
)
from pytest_multihost.core.model.json_values import JsonObject
from pytest_multihost.core.model.messages import FaultPerformed, Release, SentByService
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.after_fork import reset_after_fork
from pytest_multihost.core.rank.neighbours import save_coverage, stop_tqdm_monitor
from pytest_multihost.core.rank.raised_errors import clear_frames, format_exception, raised_error
from pytest_multihost.core.rank.recorder import start_recording
from pytest_multihost.core.rank.services import delay_backend, join_services

_RESERVE = [bytearray(4 << 20)]
"""Address space that is freed to describe an error after the memory has been used up.

Nothing is written to it, so it takes no memory."""


@dataclass(slots=True)
class ControllerLink:
    """Sends events to the controller with their times, and waits for its answers."""

    channel: Channel

    def send(self, body: RankEventBody, at_s: float | None = None) -> None:
        """Send an event that has happened at `at_s`, or now."""
        self.channel.send(event_header(body, now() if at_s is None else at_s))

    def send_with_next(self, body: RankEventBody, at_s: float) -> None:
        """Send an event that has happened at `at_s` together with the next one."""
        self.channel.send_with_next(event_header(body, at_s))

    def await_gate(self, gate: Gate) -> None:
        """Wait until the controller opens `gate`."""
        self.channel.receive(lambda message: message == Release(gate))

    def ask(self, service: str, message: JsonObject) -> JsonObject:
        """Send a message to a service of the world; return the service's answer."""
        self.send(SentToService(service, message))
        answer = self.channel.receive(
            lambda message: isinstance(message, SentByService) and message.service == service
        ).message
        return answer.message if isinstance(answer, SentByService) else {}

    def await_performed(self, index: int) -> str:
        """Wait until a fault has been performed from outside; return an error message, or ""."""
        found = self.channel.receive(
            lambda message: isinstance(message, FaultPerformed) and message.index == index
        ).message
        return found.error if isinstance(found, FaultPerformed) else ""


def start_rank(spec: RankSpec, channel: Channel, *, keeps_input: bool = False) -> None:
    """Make this process a rank, whose stacks the harness can request from now on.

    If that fails, for example because its disk is full, send the error and leave.

    Args:
        keeps_input: Whether it keeps the standard input that it has; else it reads nothing.
    """
    with sending_errors(channel):
        join_services(spec)  # first, because all times that this rank reports are the world's
        reset_after_fork(spec, keeps_input=keeps_input)
        start_recording(spec)
        stop_tqdm_monitor()
        ControllerLink(channel).send(Hello(getpid()))


def start_backend(spec: RankSpec, channel: Channel, backend: Backend) -> None:
    """Start the backend; if that fails, send the error and leave."""
    with sending_errors(channel):
        delay_backend(ControllerLink(channel).send)
        if spec.role is not None:
            Path(spec.in_role.scratch).mkdir(exist_ok=True)
        backend.start(spec.in_role)


@contextlib.contextmanager
def sending_errors(channel: Channel, *, root: str = "") -> Iterator[None]:
    """Send the controller any exception of the block, and end the rank there.

    Args:
        root: The directory that frames are shown relative to; by default the working directory.
    """
    try:
        yield
    except EOFError:  # the controller is gone: there is no reader for a report
        _exit(1)
    except BaseException as error:  # noqa: BLE001 - pytest.exit(), Ctrl-C, a plugin's error
        send_interrupted(channel, error, root=root or str(Path.cwd()))


def send_interrupted(
    channel: Channel, error: BaseException, *, root: str, is_expected: bool = False
) -> NoReturn:
    """Send the exception that interrupted this rank before its report, and leave.

    Args:
        is_expected: Whether the test's xfail mark expects it.
    """
    _RESERVE.clear()
    link = ControllerLink(channel)
    clear_frames(error)
    clear_frames(getattr(sys, "last_value", None))  # pytest keeps the error of the test's body here
    raised = raised_error(error, root=root, text=format_exception(error))
    link.send(Interrupted(raised, is_expected))
    leave(link)


def leave(link: ControllerLink) -> NoReturn:
    """Wait for the exit gate, then end by `os._exit`, without the interpreter's shutdown.

    `sys.exit` would run the destructors of runtimes whose peers are also leaving: measured 40 times
    the CPU seconds, plus jax's shutdown barrier, which hangs if a peer is dead. A forked process
    would also run the controller's exit handlers. Handlers that the test itself has registered with
    `atexit` still run, coverage is saved, and the standard streams are flushed.
    """
    link.await_gate("exit")
    leave_now()


def leave_now() -> NoReturn:
    """End the process as `leave` does, without the gate."""
    try:
        run_exit_handlers()
        save_coverage()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a test may have closed or replaced it
                stream.flush()
        _exit(0)
