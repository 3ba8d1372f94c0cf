"""Exceptions that mask a symptom: a rank's timeout struck, and what it raised then is its own.

A trainer raises an error of its own from the timeout, or logs it and exits. Such an error says
nothing of whom the rank waited for, and a test may raise for a reason of its own while it handles a
timeout that it expected. So it counts as a symptom only where the rank is then found to have
waited, for certain, for another rank that is to blame.
"""

from __future__ import annotations

from pytest_multihost.blame.causes import find_causes
from pytest_multihost.blame.rank_states import last_given_up, rank_states_of
from pytest_multihost.model.event import RaisedError
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.result import WorldResult
from pytest_multihost.outcome import Finding, RankFinding, Symptoms, judge


def judge_masked(result: WorldResult, symptoms: Symptoms) -> Finding:
    """Return what happened to a world, by what its ranks raised and what that masks."""
    plain = judge(result, symptoms)
    last = {each.rank: each for each in result.operations}
    suspects = frozenset(
        each.facts.rank
        for each in plain.ranks
        if _may_mask_symptom(each, last.get(each.facts.rank), symptoms)
    )
    if not suspects:
        return plain
    masked = suspects & _waiting_for_culprit(result, judge(result, symptoms, suspects))
    return judge(result, symptoms, masked) if masked else plain


def _may_mask_symptom(finding: RankFinding, last: Operations | None, symptoms: Symptoms) -> bool:
    failure = finding.facts.failure
    error = failure.error if failure is not None else None
    if error is None or finding.outcome not in ("failed", "error"):
        return False
    return symptoms.is_raised_from_symptom(error) or _exits_after_symptom(error, last, symptoms)


def _exits_after_symptom(error: RaisedError, last: Operations | None, symptoms: Symptoms) -> bool:
    """Return whether a rank left by sys.exit, and the last collective it was in says why."""
    if error.type != "SystemExit" or last is None:
        return False
    return last_given_up(last, symptoms) is not None


def _waiting_for_culprit(result: WorldResult, finding: Finding) -> frozenset[int]:
    """Return who waited, for certain, for a rank that is to blame."""
    causes = find_causes(rank_states_of(result, finding))
    if not causes or causes[0].confidence != "certain" or not causes[0].culprits:
        return frozenset()
    return frozenset(causes[0].waiting)
