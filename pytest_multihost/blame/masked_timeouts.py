"""Exceptions that hide a symptom: a rank's limit struck, and what it raised then is its own.

A trainer raises an error of its own from the timeout, or logs it and exits. Such words say nothing
of whom the rank waited for, and a test may raise for a reason of its own while it handles a timeout
that it expected. So they excuse a rank only where it is then found to have waited, for certain, for
another that is to blame.
"""

from __future__ import annotations

from pytest_multihost.blame.causes import find_causes
from pytest_multihost.blame.rank_states import last_given_up, rank_states_of
from pytest_multihost.model.event import RaisedError
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.result import WorldResult
from pytest_multihost.outcome import Finding, RankFinding, Symptoms, judge


def judge_with_excuses(result: WorldResult, symptoms: Symptoms) -> Finding:
    """Return what happened to a world, by what its ranks raised and what is behind that."""
    plain = judge(result, symptoms)
    last = {each.rank: each for each in result.operations}
    hiding = frozenset(
        each.facts.rank
        for each in plain.ranks
        if _hides_symptom(each, last.get(each.facts.rank), symptoms)
    )
    excused = hiding & _excusable(result, judge(result, symptoms, hiding)) if hiding else hiding
    return judge(result, symptoms, excused) if excused else plain


def _hides_symptom(finding: RankFinding, last: Operations | None, symptoms: Symptoms) -> bool:
    failure = finding.facts.failure
    error = failure.error if failure is not None else None
    if error is None or finding.outcome not in ("failed", "error"):
        return False
    return symptoms.is_raised_from_symptom(error) or _exits_after_symptom(error, last, symptoms)


def _exits_after_symptom(error: RaisedError, last: Operations | None, symptoms: Symptoms) -> bool:
    """Whether a rank left by sys.exit, and the last collective it was in says why."""
    if error.type != "SystemExit" or last is None:
        return False
    return last_given_up(last, symptoms) is not None


def _excusable(result: WorldResult, finding: Finding) -> frozenset[int]:
    """Return who waited, for certain, for a rank that is to blame."""
    causes = find_causes(rank_states_of(result, finding))
    if not causes or causes[0].confidence != "certain" or not causes[0].culprits:
        return frozenset()
    return frozenset(causes[0].waiting)
