"""Observe ranks from outside: take snapshots and detect a hang.

`watchdog` decides when to take snapshots, `observer` takes them, `kernel` reads /proc, and
`probes` collects stacks.
"""

from pytest_multihost.watch.observer import RemoteRanks, WorldObserver
from pytest_multihost.watch.watchdog import NoWatch, Observations, Watch, Watchdog

__all__ = [
    "NoWatch",
    "Observations",
    "RemoteRanks",
    "Watch",
    "Watchdog",
    "WorldObserver",
]
