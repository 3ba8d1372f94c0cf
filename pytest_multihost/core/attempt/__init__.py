"""An attempt: the one path from a world that runs to the records that its reader gets.

* `observe`: run a world, and watch it. `progress`: the line about it meanwhile.
* `judge`: the outcome, and the rank to blame.
* `apart`: both for a world that its caller compares with another one.
* `write`: verdict, history, facts and page.
* `rejudge`: the same judgement again, from the records alone.

Tests, scripts, worlds of a sweep, replays and ``multihost explain`` are its callers.
"""

from pytest_multihost.core.attempt.apart import run_apart
from pytest_multihost.core.attempt.judge import judge
from pytest_multihost.core.attempt.observe import WatchedWorld, harness_processes
from pytest_multihost.core.attempt.progress import FindBlockingRanks, WorldProgress
from pytest_multihost.core.attempt.rejudge import Rejudged, rejudge
from pytest_multihost.core.attempt.write import write

__all__ = [
    "FindBlockingRanks",
    "Rejudged",
    "WatchedWorld",
    "WorldProgress",
    "harness_processes",
    "judge",
    "rejudge",
    "run_apart",
    "write",
]
