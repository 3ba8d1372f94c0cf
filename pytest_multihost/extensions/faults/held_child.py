"""Hold the next process that this rank starts, while the rank goes on.

A process that is forked stops itself before it runs any code of the test. A program is
stopped from here, and only after its call of exec: until then its parent may wait (vfork(2)).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from time import monotonic, sleep  # by name: the test may replace them in its module

from pytest_multihost.core.procfs import children_of, command_of, stat_words

_APPEARS_S = 2.0
"""How long a call may take to start its process."""

_POLL_S = 0.0005

_TRACKER = b"multiprocessing.resource_tracker"
"""Part of the command of a process that multiprocessing starts beside the first one it spawns."""

_STOPPED, _ENDED = ("T", "t"), ("X", "Z")
"""States of processes in /proc/PID/stat."""


def hold_next_child(await_release: Callable[[], object]) -> Callable[[], None]:
    """Prepare for the next child of this process; return a function that holds it.

    Args:
        await_release: Returns when the child may go on.
    """
    parent, known, is_over = os.getpid(), frozenset(children_of(os.getpid())), list[bool]()

    def stop_itself() -> None:
        if not is_over and os.getppid() == parent:
            is_over.append(True)  # its own children go on
            os.kill(os.getpid(), signal.SIGSTOP)

    os.register_at_fork(after_in_child=stop_itself, after_in_parent=lambda: is_over.append(True))

    def hold() -> None:
        child = _stopped_child(parent, known)
        is_over.append(True)
        await_release()
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)

    return hold


def _stopped_child(parent: int, known: frozenset[int]) -> int | None:
    """Wait for a new child of a process, and return it once it is stopped; None without one."""
    command = command_of(parent)
    deadline_s = monotonic() + _APPEARS_S
    signalled = set[int]()
    while monotonic() < deadline_s:
        for each in sorted(set(children_of(parent)) - known):
            state, own = _state(each), command_of(each)
            if state in _STOPPED:
                return each
            has_called_exec = own not in (command, b"") and _TRACKER not in own
            if state not in _ENDED and each not in signalled and has_called_exec:
                signalled.add(each)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGSTOP)
        sleep(_POLL_S)
    return next(iter(signalled), None)


def _state(pid: int) -> str:
    try:
        return stat_words(pid)[0]
    except OSError:
        return "X"
