"""Judge a world: what happened to it, who made the others wait, and how that is known.

Top-down: the world's history gives a finding (what happened to each rank), finding and snapshots
give the state of each rank, the states give the wait-for graph, its sinks give causes, and the
first of these is written down as the diagnosis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_multihost.blame.build_diagnosis import (
    DETECTED_BY,
    build_diagnosis,
    planned_freeze,
)
from pytest_multihost.blame.causes import Cause, find_causes
from pytest_multihost.blame.partition_blame import as_cut
from pytest_multihost.blame.rank_states import last_given_up, rank_states_of
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.stack import SourceContext, group_by_main_stack
from pytest_multihost.model.verdict import Diagnosis
from pytest_multihost.outcome import Finding, RankFinding, Symptoms, judge

_WITH_DIAGNOSIS = frozenset({"hung", "crashed", "failed", "error"})

_NEEDS_WAITERS = frozenset({"failed", "error"})
"""Outcomes whose cause the exception tells, unless others waited for the rank."""

_MOMENTARY = frozenset({"straggler", "livelock", "gil_held", "stopped", "transport"})
"""Kinds that say what ranks do at an instant: that it stays so only time shows, or a proof."""

_OWN_WAITS = frozenset({"sleep", "futex", "futex_wait", "futex_waitv"})
"""Waits that nothing outside of a process ends: for time, or for another of its threads."""

_UNKNOWN = Cause(kind="unknown", confidence="unknown")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A world, what was found, and why."""

    result: WorldResult
    finding: Finding
    diagnosis: Diagnosis | None


def judge_world(result: WorldResult, symptoms: Symptoms, context: SourceContext) -> Judgement:
    """Judge a world.

    Args:
        result: What was observed of it.
        symptoms: How the backend's failures look when they follow from another rank's.
        context: Names files, and reads lines of them.
    """
    finding = judge_masked(result, symptoms)
    diagnosis = diagnose(result, finding, context)
    if diagnosis is not None and finding.outcome == "hung" and diagnosis.kind != "unknown":
        finding = replace(finding, reason=diagnosis.summary)
    return Judgement(result, finding, diagnosis)


def diagnose(result: WorldResult, finding: Finding, context: SourceContext) -> Diagnosis | None:
    """Return why a world hung or broke; None where there is nothing to tell.

    A world that failed is diagnosed when others were waiting for the rank that did.
    """
    if finding.outcome not in _WITH_DIAGNOSIS or result.ending in ("lost", "interrupted"):
        return None
    states = {each.rank: each for each in rank_states_of(result, finding)}
    found = (_as_planned(each, result) for each in find_causes(states.values()))
    causes = tuple(as_cut(each, states, result) for each in found)
    if _is_ended_by_event(result, finding):
        # A rank that is only on its way is a bystander: the event that ended the world comes first.
        causes = tuple(sorted(causes, key=_is_momentary))
    if finding.outcome in _NEEDS_WAITERS and not _explains_failure(causes, result, finding):
        return None
    if not causes or _is_ambiguous(causes[0], result):
        causes = (_UNKNOWN, *causes[1:])
    return build_diagnosis(causes, states, result, finding, context)


def _as_planned(cause: Cause, result: WorldResult) -> Cause:
    """Return the cause with another name where a fault of the test keeps a rank stopped.

    "stopped" says that somebody else does it. Frozen as the test wants it, a rank is late for good.
    """
    if cause.kind != "stopped" or planned_freeze(cause, result) is None:
        return cause
    return replace(cause, kind="straggler" if cause.waiting else "stuck")


def _is_ended_by_event(result: WorldResult, finding: Finding) -> bool:
    """Return whether a world ended because a rank died or raised, not because it was seen to hang.

    Example: rank 1 dies while rank 0 has not come to the barrier yet that the others are in. By the
    graph rank 0 is late; but it was on its way, and the death ended the world.
    """
    return finding.outcome != "hung" and result.ending not in DETECTED_BY


def _is_momentary(cause: Cause) -> bool:
    """Return whether a cause says no more than that a rank was, perhaps, on its way at the end."""
    return cause.kind in _MOMENTARY and not (cause.kind == "transport" and cause.culprits)


def _explains_failure(causes: Sequence[Cause], result: WorldResult, finding: Finding) -> bool:
    """Return whether the first cause says more of a failure than the failure itself: others waited.

    Where no runtime has given up waiting, one that had not come yet when another failed is slow.
    """
    if not causes or not causes[0].waiting:
        return False
    gave_up = any(each.outcome == "collateral" and each.at_s is not None for each in finding.ranks)
    return gave_up or not (_is_ended_by_event(result, finding) and _is_momentary(causes[0]))


def _is_ambiguous(cause: Cause, result: WorldResult) -> bool:
    """Return whether ranks are blocked at different places, and nothing says why.

    They may wait for one another in a way that no recorder has seen: over sockets, for instance.
    """
    if cause.kind != "stuck" or len(cause.culprits) == 1:
        return False
    seen = [result.last_seen[rank] for rank in cause.culprits if rank in result.last_seen]
    wait_for_themselves = all(e.activity and e.activity.name in _OWN_WAITS for e in seen)
    if len(cause.culprits) == result.spec.size and not wait_for_themselves:
        return True
    groups = group_by_main_stack(dump for dump in result.dumps if dump.rank in cause.culprits)
    return len(groups) > 1


# Exceptions that mask a symptom
#
# A rank's timeout strikes, and its trainer raises an error of its own then, or logs it and exits.
# Such an error says nothing of whom the rank waited for, and a test may raise for a reason of its
# own while it handles a timeout that it expected. So it counts as a symptom only where the rank is
# then found to have waited, for certain, for another rank that is to blame.


def judge_masked(result: WorldResult, symptoms: Symptoms) -> Finding:
    """Return what happened to a world, by what its ranks raised and what that masks."""
    plain = judge(result, symptoms)
    suspects = frozenset(
        each.facts.rank
        for each in plain.ranks
        if _may_mask_symptom(each, result.last_operations(each.facts.rank), symptoms)
    )
    if not suspects:
        return plain
    first, *_ = find_causes(rank_states_of(result, judge(result, symptoms, suspects))) or [_UNKNOWN]
    waited = first.waiting if first.confidence == "certain" and first.culprits else ()
    return judge(result, symptoms, suspects.intersection(waited))


def _may_mask_symptom(finding: RankFinding, last: Operations, symptoms: Symptoms) -> bool:
    """Return whether a rank raised while it handled a symptom, or left by sys.exit after one."""
    failure = finding.facts.failure
    error = failure.error if failure is not None else None
    if error is None or finding.outcome not in ("failed", "error"):
        return False
    if error.type == "SystemExit" and last_given_up(last, symptoms) is not None:
        return True
    return symptoms.is_raised_from_symptom(error)
