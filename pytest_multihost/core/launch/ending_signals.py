"""SIGTERM and SIGHUP end a run with worlds as Ctrl-C does: ranks are ended, verdicts written.

By default they would end pytest at once, and with it every record of where the ranks were. Time
limits and schedulers begin with SIGTERM; a terminal or connection that is closed sends SIGHUP.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGTERM, signal.SIGHUP)

_owner = 0
"""The process that has installed the handlers: what it forks does not interrupt itself."""


def interrupt_on_signals() -> None:
    """Have the signals raise KeyboardInterrupt, where they have their default meaning so far.

    nohup has SIGHUP ignored, another plugin or an attached run may have handlers of its own.
    """
    global _owner  # noqa: PLW0603 - as the handlers, it is the process's
    _owner = os.getpid()
    for number in ENDING:
        with contextlib.suppress(ValueError):  # pytest does not run in the main thread
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)


def ignore_further_signals() -> None:
    """Ignore the signals from now on: the run ends, and pytest does not expect another here."""
    for number in ENDING:
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_IGN)


def restore_signals() -> None:
    """Undo `interrupt_on_signals`, unless the run has been interrupted: then it ends soon."""
    for number in ENDING:
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    if os.getpid() != _owner:  # a child that a test has forked
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    raise KeyboardInterrupt(signal.Signals(number).name)
