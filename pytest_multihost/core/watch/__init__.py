"""Observe ranks from outside: take snapshots and detect a hang.

* `watchdog`: decides when to take snapshots. `observer`: takes them. `comparison`: compares two.
  `polled_locks`: finds the rank that holds a lock for which another rank keeps trying.
  `shared_waits`: the ranks that may end a wait for an object of several ranks.
  `collection`: puts off the collection of garbage.
* `kernel`: reads /proc. `probes`: collects stacks.
"""

from pytest_multihost.core.watch.collection import collection_put_off
from pytest_multihost.core.watch.comparison import rank_snapshots, unmoved_ranks
from pytest_multihost.core.watch.observer import WorldObserver
from pytest_multihost.core.watch.watchdog import Ground, NoWatch, Observations, Watchdog

__all__ = [
    "Ground",
    "NoWatch",
    "Observations",
    "Watchdog",
    "WorldObserver",
    "collection_put_off",
    "rank_snapshots",
    "unmoved_ranks",
]
