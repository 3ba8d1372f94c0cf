"""Ends ranks that are proven to hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from pytest_multihost.core.model.stack import Dump
from pytest_multihost.core.procfs import descendants_of

_POOLS = (
    ("/multiprocessing/pool.py", "worker"),
    ("/concurrent/futures/process.py", "_process_worker"),
)


def is_of_pool(dumps: Iterable[Dump]) -> bool:
    """Return whether a rank is a worker of a pool.

    A pool never notices that a worker was killed: it starts another one, and the task is lost.
    """
    return any(
        frame.file.endswith(file) and frame.function == function
        for dump in dumps
        for thread in dump.threads
        for frame in thread.frames
        for file, function in _POOLS
    )


def awaits_pool(dumps: Iterable[Dump]) -> bool:
    """Return whether a main thread waits for a result of a pool."""
    return any(
        frame.file.endswith(_POOLS[0][0]) and frame.function.endswith("ApplyResult.wait")
        for dump in dumps
        for frame in dump.threads[-1].frames
    )


def end_ranks(pids: Iterable[int]) -> None:
    """Kill ranks, and their descendants."""
    for pid in pids:
        for each in (*descendants_of(pid), pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def stop_run(pid: int) -> None:
    """Interrupt a process, as Ctrl-C does: its pool ends its workers then."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
