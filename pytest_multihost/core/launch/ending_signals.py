"""Let SIGTERM and SIGHUP end a run as Ctrl-C does: ranks are ended, and verdicts are written.

By default they end pytest at once, and every record of where the ranks were is lost. Time limits
and schedulers first send SIGTERM; a terminal or connection that is closed sends SIGHUP.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGTERM, signal.SIGHUP)

_owner = 0
"""Id of the process that installed the handlers: in its forked children they do not raise."""


def interrupt_on_signals() -> None:
    """Have each signal raise KeyboardInterrupt, unless its default action has been replaced.

    nohup ignores SIGHUP; another plugin or an attached run may have its own handlers.
    """
    global _owner  # noqa: PLW0603 - there is one per process, like the handlers
    _owner = os.getpid()
    for number in ENDING:
        with contextlib.suppress(ValueError):  # pytest does not run in the main thread
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)


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


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    if os.getpid() != _owner:  # a child that a test has forked
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    raise KeyboardInterrupt(signal.Signals(number).name)
