"""Observe ranks from outside: take snapshots and detect a hang.

`watchdog` decides when to take snapshots, `observer` takes them and says which rank holds the lock
that another one tries to get again and again. `kernel` reads /proc, and `probes` collects stacks.
`held_ranks` says when a rank that a fault holds may go on, and `clock_jumps` when the world's clock
jumps.
"""

from pytest_multihost.core.services.held_ranks import HeldRanks, Release
from pytest_multihost.core.watch.observer import WorldObserver, rank_snapshots
from pytest_multihost.core.watch.watchdog import NoWatch, Observations, Watchdog

__all__ = [
    "HeldRanks",
    "NoWatch",
    "Observations",
    "Release",
    "Watchdog",
    "WorldObserver",
    "rank_snapshots",
]
