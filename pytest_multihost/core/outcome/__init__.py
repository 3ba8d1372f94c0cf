"""What happened to a world and to each of its ranks, cause first: pure functions of its history.

* `rank_facts`: the facts about a rank, folded from the world's events. `symptoms`: exceptions that
  only follow from another rank's failure.
* `finding`: what happened. `own_failures`: failures that the end of a world does not explain.
* `points`: the points that ranks have passed.
* `fault_progress`: which faults have happened. `active_faults`: which will still act.
"""

from pytest_multihost.core.outcome.finding import Finding, RankFinding, judge
from pytest_multihost.core.outcome.rank_facts import RankFacts, advance, describe_exit, fold_history
from pytest_multihost.core.outcome.symptoms import Symptoms

__all__ = [
    "Finding",
    "RankFacts",
    "RankFinding",
    "Symptoms",
    "advance",
    "describe_exit",
    "fold_history",
    "judge",
]
