"""What happened to a world and to each of its ranks, cause first: pure functions of its history.

`rank_facts` folds a world's events, with the patterns of exceptions that only follow from another
rank's failure. `finding` judges what happened, and which failures the end of a world does not
explain. `points` says which points ranks have passed, and which faults have happened.
"""

from pytest_multihost.core.outcome.finding import Finding, RankFinding, judge
from pytest_multihost.core.outcome.rank_facts import (
    RankFacts,
    Symptoms,
    advance,
    describe_exit,
    fold_history,
)

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
