"""Share one machine between several controllers, as pytest-xdist starts them.

Ten workers that each start a world of eight would start eighty processes at once, and start-up
deadlines would expire through no fault of the tests. So the ranks of all controllers of one run
share a semaphore: a fixed number of permits, each a file that is locked with flock(2). The kernel
releases a lock when its process ends, in any way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def permit_count() -> int:
    """Return how many ranks may run at once: they wait more than they compute."""
    return max(8, 2 * (os.cpu_count() or 1))


@contextlib.contextmanager
def hold_permits(directory: Path, wanted: int, *, count: int) -> Iterator[None]:
    """Hold permits for a world's ranks, waiting until they are free.

    A world larger than their number takes all of them. A waiting controller holds the gate lock,
    so that several worlds cannot each hold some permits and wait for the rest.

    Args:
        directory: Where the lock files are; one per run of pytest.
        wanted: Number of ranks.
        count: Number of permits.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with _locked(directory / "gate"):
            for permit in _take(directory, min(wanted, count), count):
                held.callback(os.close, permit)
        yield


def _take(directory: Path, wanted: int, count: int) -> Iterator[int]:
    """Yield descriptors of `wanted` locked files: first the free ones, then others by waiting."""
    import fcntl  # not on every system that can import this package

    busy = []
    taken = 0
    for index in range(count):
        if taken == wanted:
            return
        descriptor = _open(directory / str(index))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            busy.append(index)
        else:
            taken += 1
            yield descriptor
    for index in busy[: wanted - taken]:
        descriptor = _open(directory / str(index))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
