"""The outcome of a world and of each of its ranks, cause first: pure functions of its history.

* `rank_facts`: the facts about a rank, folded from the world's events. `symptoms`: exceptions that
  only follow from another rank's failure.
* `finding`: the outcome.
* `agreement`: the values in which ranks differ.
* `fault_progress`: which faults have happened. `active_faults`: which will still act.
"""

from pytest_multihost.core.outcome.active_faults import (
    continued_by_plan,
    frozen_for_good,
    has_pending_actions,
)
from pytest_multihost.core.outcome.agreement import disagreements
from pytest_multihost.core.outcome.fault_progress import firings
from pytest_multihost.core.outcome.finding import Finding, RankFinding, as_aborted, judge
from pytest_multihost.core.outcome.rank_facts import RankFacts, advance, describe_exit, fold_history
from pytest_multihost.core.outcome.symptoms import Symptoms

__all__ = [
    "Finding",
    "RankFacts",
    "RankFinding",
    "Symptoms",
    "advance",
    "as_aborted",
    "continued_by_plan",
    "describe_exit",
    "disagreements",
    "firings",
    "fold_history",
    "frozen_for_good",
    "has_pending_actions",
    "judge",
]
