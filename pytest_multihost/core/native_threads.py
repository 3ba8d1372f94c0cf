"""Finds native threads that a fork would lose.

A fork copies one thread. Some libraries know that: their fork handlers end their threads before it,
or leave nothing locked in the child.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

_TASKS = Path("/proc/self/task")
_SETTLE_S = 0.2
"""How long the kernel may list a thread that has ended."""

_FORK_SAFE = frozenset({"jemalloc_bg_thd"})
"""Names of threads whose own fork handlers leave nothing locked in the child.

pyarrow contains jemalloc, and datasets imports pyarrow. If such a thread forbade the fork, each
rank would be a fresh interpreter that imports everything again.
"""


def native_thread_problems(permitted: int = 0) -> list[str]:
    """Report native threads, after a trial fork whose handlers may have stopped them.

    OpenBLAS, which numpy starts on import, ends its pool in its own fork handler. jemalloc's
    handlers do not end its thread, but hold its locks during the fork.

    Args:
        permitted: Number of other threads that are known to be harmless.
    """
    most = 1 + permitted
    if len(_thread_names()) > most:
        with warnings.catch_warnings():
            # Python 3.12+ warns of forks with threads, and this tests forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    deadline = time.monotonic() + _SETTLE_S
    while len(names := _thread_names()) > most and time.monotonic() < deadline:
        time.sleep(0.002)
    if len(names) <= most:
        return []
    count = len(names) - most
    return [f"native code in it runs {count} threads: {', '.join(sorted(set(names)))}"]


def _thread_names() -> list[str]:
    names = []
    for task in os.listdir(_TASKS):
        try:
            names.append((_TASKS / task / "comm").read_text().strip())
        except OSError:  # the thread has ended meanwhile
            continue
    return [name for name in names if name not in _FORK_SAFE]
