"""Exceptions that mask a symptom.

A rank's operation times out, and its trainer then raises an error of its own, or logs and exits.
Such an error does not say which rank it waited for, and a test may raise for its own reasons
while it handles an expected timeout. So the error counts as a symptom only if the rank is then
found to have waited, with certainty, for a culprit.
"""

from __future__ import annotations

from pytest_multihost.core.blame.cause import UNKNOWN
from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.rank_states import last_given_up, rank_states_of
from pytest_multihost.core.model.operation import Operations
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.outcome import Finding, RankFinding, Symptoms, judge


def judge_masked(result: WorldResult, symptoms: Symptoms) -> Finding:
    """Return the outcome of a world; exceptions that mask a symptom count as symptoms."""
    plain = judge(result, symptoms)
    suspects = frozenset(
        each.facts.rank
        for each in plain.ranks
        if _may_mask_symptom(each, result.last_operations(each.facts.rank), symptoms)
    )
    if not suspects:
        return plain
    first, *_ = find_causes(rank_states_of(result, judge(result, symptoms, suspects))) or [UNKNOWN]
    waited = first.waiting if first.confidence == "certain" and first.culprits else ()
    return judge(result, symptoms, suspects.intersection(waited))


def _may_mask_symptom(finding: RankFinding, last: Operations, symptoms: Symptoms) -> bool:
    """Return whether a rank raised while it handled a symptom, or called sys.exit after one."""
    failure = finding.facts.failure
    error = failure.error if failure is not None else None
    if error is None or finding.outcome not in ("failed", "error"):
        return False
    if error.type == "SystemExit" and last_given_up(last, symptoms) is not None:
        return True
    return symptoms.is_raised_from_symptom(error)
