"""Observe ranks from outside: take snapshots and detect a hang.

`watchdog` decides when to take snapshots, `observer` takes them and says which rank holds the lock
that another one tries to get again and again. `kernel` reads /proc, and `probes` collects stacks.
"""

from pytest_multihost.core.watch.observer import WorldObserver, rank_snapshots
from pytest_multihost.core.watch.watchdog import NoWatch, Observations, Watchdog

__all__ = [
    "NoWatch",
    "Observations",
    "Watchdog",
    "WorldObserver",
    "rank_snapshots",
]
