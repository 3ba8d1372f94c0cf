"""What happened to a world and to each of its ranks, cause first: pure functions of its history.

`rank_facts` folds a world's events, `finding` judges what happened, `symptoms` says which
exceptions only follow from another rank's failure, `own_failures` which failures the expected end
of a world does not explain, `faults` which faults have happened, and `passed_points` which points
ranks have passed.
"""

from pytest_multihost.outcome.finding import Finding, RankFinding, judge
from pytest_multihost.outcome.rank_facts import RankFacts, advance, describe_exit, fold_history
from pytest_multihost.outcome.symptoms import Symptoms

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
