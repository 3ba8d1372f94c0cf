"""Observe ranks from outside: take snapshots, and find out that their world hangs.

`watchdog` decides when, `observer` takes the snapshots; `kernel` reads the kernel, `probes`
take stacks.
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
