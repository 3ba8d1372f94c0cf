"""Share one machine between several controllers, as pytest-xdist makes them.

Ten workers that each start a world of eight would be eighty processes that want to start up at
once, and start-up deadlines would pass for no fault of the tests. So the ranks of all controllers
of one run draw on a common number of places: files that are locked with flock(2), which the kernel
releases whoever is killed.
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
def places(directory: Path, wanted: int, *, count: int) -> Iterator[None]:
    """Hold places for a world's ranks, waiting until they are free.

    A world larger than all places takes all of them. Who waits holds the gate, so places are not
    hoarded by several worlds that each have a part of theirs.

    Args:
        directory: Where the lock files are; one per run of pytest.
        wanted: Number of ranks.
        count: Number of places.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with _locked(directory / "gate"):
            for place in _take(directory, min(wanted, count), count):
                held.callback(os.close, place)
        yield


def _take(directory: Path, wanted: int, count: int) -> Iterator[int]:
    """Yield descriptors of `wanted` locked places: first the free ones, then whichever come."""
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
