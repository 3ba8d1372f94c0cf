"""Observe ranks from outside: take snapshots and detect a hang.

`watchdog` decides when to take snapshots, `observer` takes them and says which rank holds the lock
that another one tries to get again and again. `remote_ranks` takes those of other machines and
makes one of all, `kernel` reads /proc, and `probes` collects stacks.
"""

from pytest_multihost.core.watch.observer import WorldObserver, rank_snapshots
from pytest_multihost.core.watch.watchdog import NoWatch, Observations, Watchdog
from pytest_multihost.extensions.engines.remote_ranks import RemoteRanks

__all__ = [
    "NoWatch",
    "Observations",
    "RemoteRanks",
    "Watchdog",
    "WorldObserver",
    "rank_snapshots",
]
