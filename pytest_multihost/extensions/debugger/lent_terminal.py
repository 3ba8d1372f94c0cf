"""The settings of the terminal that ranks borrow, restored if the controller is killed.

A debugger switches the terminal's echo off while it reads a line. The controller restores that, and
so does the rank, but not if both are killed with SIGKILL. The server outlives them.
"""

from __future__ import annotations

import contextlib
import os
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_multihost.core.launch.server.parts import ServerPart
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.procfs import process_ids, stat_words
from pytest_multihost.extensions.debugger.messages import Debugger

_TERMINAL, _FOREGROUND = 4, 5
"""Places in /proc/PID/stat behind the program's name: the terminal, and its foreground group."""


@dataclass(frozen=True, slots=True)
class LentTerminal:
    """A terminal as it was before ranks could use it.

    Attributes:
        attributes: Its settings, as `termios` has them.
        group: The process group of the controller.
    """

    path: str
    attributes: list[Any]
    group: int

    @classmethod
    def saved(cls, path: str, controller: int) -> LentTerminal | None:
        """Return the terminal with its present settings; None if they cannot be read."""
        with contextlib.suppress(OSError, termios.error), _opened(path) as descriptor:
            return cls(path, termios.tcgetattr(descriptor), os.getpgid(controller))
        return None

    def restore(self) -> None:
        """Restore the settings, unless another process, such as the shell, has the terminal by now.

        The controller has ended. A shell restores them itself, and then sets its own.
        """
        with contextlib.suppress(OSError, termios.error), _opened(self.path) as descriptor:
            if _foreground(os.fstat(descriptor).st_rdev) in (None, self.group):
                termios.tcsetattr(descriptor, termios.TCSANOW, self.attributes)


def start(spec: WorldSpec, _scratch: Path) -> ServerPart:
    """Return the part of the service in the server, which restores the terminal if need be."""
    debugger = Debugger.of(spec)
    saved = LentTerminal.saved(debugger.terminal, debugger.controller)
    return ServerPart() if saved is None else ServerPart(abandon=saved.restore)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _foreground(device: int) -> int | None:
    """Return the process group in the foreground of a terminal; None if no process is left there.

    tcgetpgrp(3) tells it only to processes of the terminal's session.
    """
    for process in process_ids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = stat_words(process)
            if int(words[_TERMINAL]) == device and int(words[_FOREGROUND]) > 0:
                return int(words[_FOREGROUND])
    return None
