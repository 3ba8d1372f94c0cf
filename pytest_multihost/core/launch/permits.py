"""Share one machine between several controllers, as pytest-xdist starts them.

Ten workers that each start a world of eight would start eighty processes at once, and start-up
deadlines would expire through no fault of the tests. So the ranks of all controllers of one run
share a semaphore: a fixed number of permits, each a file that is locked with flock(2). The kernel
releases a lock when its process ends, in any way.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pytest_multihost.core.locks import LONGEST_S, lock, open_lock


def permit_count() -> int:
    """Return how many ranks may run at once: more than cores, because ranks mostly wait."""
    return max(8, 2 * (os.cpu_count() or 1))


@contextlib.contextmanager
def hold_permits(directory: Path, wanted: int, *, count: int | None = None) -> Iterator[None]:
    """Hold permits for a world's ranks, waiting until they are free.

    A world larger than their number takes all of them. A waiting controller holds the gate lock,
    so that several worlds cannot each hold some permits and wait for the rest. After an hour a
    world begins without them: a process that never ends may hold them.

    Args:
        directory: Directory of the lock files, one for each run of pytest.
        count: Number of permits; by default `permit_count()`.
    """
    count = permit_count() if count is None else count
    missing = min(wanted, count)
    busy = []
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    until_s = time.monotonic() + LONGEST_S
    with contextlib.ExitStack() as held:
        with _opened(directory / "gate") as gate:
            lock(gate, within_s=LONGEST_S)
            for index in range(count):
                if not missing:
                    break
                permit = held.enter_context(_opened(directory / str(index)))
                if lock(permit, within_s=0):
                    missing -= 1
                else:
                    busy.append(permit)
            for permit in busy[:missing]:
                lock(permit, within_s=max(0.0, until_s - time.monotonic()))
        yield


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = open_lock(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
