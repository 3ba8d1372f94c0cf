"""Observe ranks from outside: take snapshots and detect a hang.

* `watchdog`: decides when to take snapshots. `observer` takes them, with `polled_locks`: which rank
  holds the lock that another one tries to get again and again. `comparison` compares two of them.
* `kernel`: reads /proc. `probes`: collects stacks.
"""

from pytest_multihost.core.watch.comparison import rank_snapshots
from pytest_multihost.core.watch.observer import WorldObserver
from pytest_multihost.core.watch.watchdog import NoWatch, Observations, Watchdog

__all__ = [
    "NoWatch",
    "Observations",
    "Watchdog",
    "WorldObserver",
    "rank_snapshots",
]
