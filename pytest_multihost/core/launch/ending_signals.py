"""Let SIGTERM and SIGHUP end a run as Ctrl-C does: ranks are ended, and verdicts are written.

By default they end pytest at once, and every record of where the ranks were is lost. Time limits
and schedulers first send SIGTERM; a terminal or connection that is closed sends SIGHUP. Many repeat
their signal, and only the first one interrupts the run: another exception would strike while ranks
are ended or a verdict is written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)

LOST_AFTER_S = 5.0
"""A signal after this time interrupts again: the first exception may have struck in a destructor,
where Python only prints it."""


@dataclass
class _SignalState:
    """State of the signal handlers; like them, it exists once per process.

    Attributes:
        owner: Id of the process that installed the handlers: in its forked children they do not
            raise.
        raised_s: When the last signal interrupted the run, on the monotonic clock.
        is_ending: The interruption has arrived where the run is ended.
        may_raise_once: The next signal interrupts the work in progress.
    """

    owner: int = 0
    raised_s: float | None = None
    is_ending: bool = False
    may_raise_once: bool = False


_state = _SignalState()


def interrupt_on_signals() -> None:
    """Have the next signal raise KeyboardInterrupt, unless its default action has been replaced.

    nohup ignores SIGHUP; another plugin or an attached run may have its own handlers. A starter may
    have ignored SIGCHLD: then the kernel forgets a child that ends, and no process can wait for
    one.
    """
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _state.owner = os.getpid()
    _state.raised_s, _state.is_ending, _state.may_raise_once = None, False, False
    for number in ENDING:
        with contextlib.suppress(ValueError):  # pytest does not run in the main thread
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)


def end_in_spite_of_signals() -> None:
    """Note that the interruption has arrived: from now on further signals do nothing."""
    _state.is_ending = True


@contextlib.contextmanager
def interrupted_once() -> Iterator[None]:
    """Let one further signal raise KeyboardInterrupt in the body, which the run can do without."""
    _state.may_raise_once = True
    try:
        yield
    finally:
        _state.may_raise_once = False


def ignore_further_signals() -> None:
    """Ignore the signals from now on: the run ends, and pytest does not handle another one here."""
    for number in ENDING:
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_IGN)


def restore_signals() -> None:
    """Undo `interrupt_on_signals`; if the signals are ignored, because the run ends, do nothing."""
    for number in ENDING:
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _: FrameType | None) -> None:
    if os.getpid() != _state.owner:  # a child that a test has forked
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    now = time.monotonic()
    is_repeated = _state.raised_s is not None and now - _state.raised_s < LOST_AFTER_S
    if (_state.is_ending or is_repeated) and not _state.may_raise_once:
        return
    # Closed here, not by the body: the next signal may come before the body has handled this one.
    _state.may_raise_once = False
    _state.raised_s = now
    raise KeyboardInterrupt(signal.Signals(number).name)
