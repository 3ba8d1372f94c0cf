"""From a cause to the diagnosis that people and programs read: words, places, evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.blame.causes import Cause, find_causes
from pytest_multihost.blame.partition_blame import as_cut, network_evidence
from pytest_multihost.blame.rank_states import rank_states_of
from pytest_multihost.blame.summary import planned_freeze, summary
from pytest_multihost.blame.wait_graph import RankState, Wait, left_alone
from pytest_multihost.model.event import Exited, RankEventBody
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.snapshot import RankSnapshot
from pytest_multihost.model.stack import (
    Frame,
    SourceContext,
    group_by_main_stack,
    innermost_user_frame,
    inside_the_test,
    is_library,
)
from pytest_multihost.model.verdict import (
    CulpritPlace,
    DetectedBy,
    Diagnosis,
    Evidence,
    Kind,
    OperationName,
    Place,
    PlaceGroup,
    WaitsFor,
)
from pytest_multihost.outcome import Finding, RankFinding, describe_exit
from pytest_multihost.outcome.faults import fault_notes, unfired_faults

_DETECTED_BY: Mapping[str, DetectedBy] = {
    "proof": "proof",
    "mismatch": "mismatch",
    "stopped": "stopped",
    "overrun": "deadline",
    "startup-overrun": "deadline",
}

_VAGUE = frozenset({"stuck", "unknown", "transport", "straggler"})
"""Kinds of which more might be known if more could be seen."""

_NEEDS_WAITERS = frozenset({"failed", "error"})
"""Outcomes whose cause is told by the exception, unless others waited for the rank."""


def diagnose(result: WorldResult, finding: Finding, context: SourceContext) -> Diagnosis | None:
    """Return why the world hung or broke; None where there is nothing to tell.

    A world that failed is diagnosed when others were waiting for the rank that did.
    """
    if finding.outcome not in ("hung", "crashed", "failed", "error"):
        return None
    if result.ending in ("lost", "interrupted"):
        return None
    states = rank_states_of(result, finding)
    by_rank = {each.rank: each for each in states}
    found = (_as_planned(each, result) for each in find_causes(states))
    causes = tuple(as_cut(each, by_rank, result) for each in found)
    if _is_ended_by_event(result, finding):
        causes = tuple(sorted(causes, key=_is_momentary))
    if finding.outcome in _NEEDS_WAITERS and not _tells_of(causes, result, finding):
        return None
    if not causes or _is_too_much(causes[0], result):
        causes = (Cause(kind="unknown", confidence="unknown"), *causes[1:])
    return _diagnosis(causes, by_rank, result, finding, context)


_MOMENTARY = frozenset({"straggler", "livelock", "gil_held", "stopped", "transport"})
"""Kinds that say what ranks do at an instant: that it stays so only time shows, or a proof."""


def _is_ended_by_event(result: WorldResult, finding: Finding) -> bool:
    """Whether a world ended because a rank died or raised, not because it was seen to hang."""
    return finding.outcome != "hung" and result.ending not in _DETECTED_BY


def _is_momentary(cause: Cause) -> bool:
    """Whether it says no more than that a rank was on its way, perhaps, when the world ended."""
    return cause.kind in _MOMENTARY and not (cause.kind == "transport" and cause.culprits)


def _tells_of(causes: Sequence[Cause], result: WorldResult, finding: Finding) -> bool:
    """Whether the first cause says more of a failure than the failure itself: others waited.

    Where no runtime has given up waiting, one that had not come yet when another failed is slow.
    """
    if not causes or not causes[0].waiting:
        return False
    gave_up = any(each.outcome == "collateral" and each.at_s is not None for each in finding.ranks)
    return gave_up or not (_is_ended_by_event(result, finding) and _is_momentary(causes[0]))


def _as_planned(cause: Cause, result: WorldResult) -> Cause:
    """Return the cause with another name where it is our own fault that keeps a rank stopped.

    "stopped" says that somebody else does it. Frozen as the test wants it, a rank is late for good.
    """
    if cause.kind != "stopped" or planned_freeze(cause, result) is None:
        return cause
    return replace(cause, kind="straggler" if cause.waiting else "stuck")


def _is_too_much(cause: Cause, result: WorldResult) -> bool:
    """Whether ranks are blocked at different places without a word of why.

    They may wait for one another in a way that nobody has told us of.
    """
    if cause.kind != "stuck" or len(cause.culprits) == 1:
        return False
    last = result.snapshots[-1].ranks if result.snapshots else ()
    is_own = all(_waits_for_itself(seen) for seen in last if seen.rank in cause.culprits)
    if len(cause.culprits) == result.spec.size and not is_own:
        return True  # sockets, perhaps to one another
    groups = group_by_main_stack(d for d in result.dumps if d.rank in cause.culprits)
    return len(groups) > 1


_OWN_WAITS = frozenset({"sleep", "futex", "futex_wait", "futex_waitv"})
"""Waits that nothing outside of a process ends: for time, or for another of its threads."""


def _waits_for_itself(seen: RankSnapshot) -> bool:
    return seen.activity is not None and seen.activity.name in _OWN_WAITS


def informed(finding: Finding, diagnosis: Diagnosis | None) -> Finding:
    """Return the finding with what the diagnosis knows better: why the world hung, and by whom."""
    if diagnosis is None or finding.outcome != "hung" or diagnosis.kind == "unknown":
        return finding
    return replace(finding, reason=diagnosis.summary)


def _diagnosis(
    causes: Sequence[Cause],
    states: Mapping[int, RankState],
    result: WorldResult,
    finding: Finding,
    context: SourceContext,
) -> Diagnosis:
    cause = causes[0]
    findings = {each.facts.rank: each for each in finding.ranks}
    progress_s = result.progress_s or _last_event_s(result)
    told_s = result.detected_s or result.ended_s
    return Diagnosis(
        kind=cause.kind,
        confidence=cause.confidence,
        phase=findings[_speaker(cause)].facts.phase,
        culprits=cause.culprits,
        waiting=cause.waiting,
        cycle=cause.cycle,
        waits_for=tuple(_waits_for(wait) for wait in _telling_waits(cause)),
        operation=_name(cause.operation) if cause.operation else None,
        where=_where(cause, findings, states, result, context),
        silent_s=_rounded(max(0.0, told_s - progress_s)),
        detected_after_s=_rounded(max(0.0, told_s - progress_s)),
        detected_by=_detected_by(result, cause.kind),
        summary=summary(cause, findings, result),
        evidence=tuple(_evidence(cause, states, findings, result)),
        groups=tuple(_groups(result, context)),
        notes=tuple(_notes(causes, findings, result)),
    )


def _speaker(cause: Cause) -> int:
    """Return the rank whose phase is the world's: the culprit's, unless it had left the test."""
    if cause.culprits and cause.kind not in ("finished", "died", "raised"):
        return cause.culprits[0]
    return (*cause.waiting, *cause.culprits, 0)[0]


def _last_event_s(result: WorldResult) -> float:
    told = [event.at_s for event in result.history if isinstance(event.body, RankEventBody)]
    died = [
        event.at_s
        for event in result.history
        if isinstance(event.body, Exited) and not event.body.by_harness
    ]
    return max([*told, *died], default=result.started_s)


def _detected_by(result: WorldResult, kind: Kind) -> DetectedBy:
    by_ending = _DETECTED_BY.get(result.ending)
    if by_ending is not None:
        return by_ending
    return "exit" if kind == "died" else "raise"


def _telling_waits(cause: Cause) -> list[Wait]:
    """Return the waits of ranks that belong to the cause, each rank's first."""
    concerned = {*cause.waiting, *cause.culprits}
    found: dict[int, Wait] = {}
    for wait in cause.waits:
        if wait.rank in concerned:
            found.setdefault(wait.rank, wait)
    return list(found.values())


def _waits_for(wait: Wait) -> WaitsFor:
    operation = _name(wait.operation) if wait.operation else None
    return WaitsFor(wait.rank, operation, tuple(sorted(wait.missing)))


def _name(operation: Operation) -> OperationName:
    return OperationName(operation.name, operation.sequence, operation.group)


def _rounded(seconds: float) -> float:
    return round(seconds, 4)


def _where(
    cause: Cause,
    findings: Mapping[int, RankFinding],
    states: Mapping[int, RankState],
    result: WorldResult,
    context: SourceContext,
) -> CulpritPlace | None:
    """Return the first culprit's innermost frame in the user's own code.

    Of one that has left what the others wait in, the line that began it.
    """
    if not cause.culprits:
        return None
    rank = cause.culprits[0]
    if cause.kind == "transport" and cause.operation is not None:
        left = left_alone(cause.operation, states[rank])
        frame = left.frame if left is not None else None
        return _culprit_place(rank, context.place(frame)) if frame is not None else None
    found = _place_of(rank, findings[rank], states[rank], result, context)
    return _culprit_place(rank, found) if found is not None else None


def _culprit_place(rank: int, at: Place) -> CulpritPlace:
    return CulpritPlace(rank, at.file, at.line, at.function, at.source)


def _place_of(
    rank: int,
    finding: RankFinding,
    state: RankState,
    result: WorldResult,
    context: SourceContext,
) -> Place | None:
    error = finding.error
    if state.condition == "raised" and error is not None and error.file and error.line:
        return context.place(Frame(error.file, error.line, error.function or ""))
    if state.condition == "finished":
        return None
    dump = next((each for each in result.dumps if each.rank == rank and each.main), None)
    frames = inside_the_test(dump.main.frames) if dump is not None and dump.main else []
    frame = innermost_user_frame(frames) or next(
        (each.frame for each in state.pending if each.frame is not None), None
    )
    return context.place(frame) if frame is not None else None


def _groups(result: WorldResult, context: SourceContext) -> Iterator[PlaceGroup]:
    """Return where the ranks' main threads were: the user's frames, and what they called."""
    for group in group_by_main_stack(result.dumps):
        inside = inside_the_test(group.frames)
        last_user = next((i for i, f in enumerate(inside) if not is_library(f.file)), 0)
        shown = inside[max(0, last_user - 1) :]
        yield PlaceGroup(group.ranks, tuple(context.place(frame) for frame in shown))


def _evidence(
    cause: Cause,
    states: Mapping[int, RankState],
    findings: Mapping[int, RankFinding],
    result: WorldResult,
) -> Iterator[Evidence]:
    for wait in _telling_waits(cause):
        if wait.operation is not None and wait.rank not in cause.culprits:
            operation, since_s = wait.operation, wait.operation.since_s - result.started_s
            fact = f"entered {operation.describe(result.spec.size)}"
            yield Evidence(wait.rank, fact, operation.source, at_s=_rounded(since_s))
    for rank in cause.culprits:
        yield from _against(states[rank], findings[rank], cause, result)
    yield from network_evidence(result)


def _against(
    state: RankState, finding: RankFinding, cause: Cause, result: WorldResult
) -> Iterator[Evidence]:
    facts = finding.facts
    if state.condition == "died" and facts.exit is not None:
        yield Evidence(state.rank, describe_exit(facts.exit), "pidfd")
    if state.condition == "raised" and finding.at_s is not None:
        at_s = _rounded(finding.at_s - result.started_s)
        yield Evidence(state.rank, f"raised {finding.summary}", "pytest", at_s=at_s)
    if state.condition == "finished" and facts.parked_s is not None:
        at_s = _rounded(facts.parked_s - result.started_s)
        yield Evidence(state.rank, "left the test", "pytest", at_s=at_s)
    if cause.operation is not None and cause.operation.kind == "collective":
        yield Evidence(state.rank, _last_words(state, cause.operation, result), "recorder")
    if state.label is not None and state.condition == "alive":
        fact = f"main thread {state.label}: {state.activity or ''}"
        yield Evidence(state.rank, fact, "proc")


def _last_words(state: RankState, operation: Operation, result: WorldResult) -> str:
    """Say how far a rank had come in a group."""
    theirs = [
        each
        for each in state.known
        if each.kind == "collective" and each.group_key == operation.group_key
    ]
    last = max(theirs, key=lambda each: each.sequence, default=None)
    if last is None:
        return "entered no operation of this group"
    left = f", which it left by {last.error}" if last.error else ""
    return f"its last operation in this group was {last.describe(result.spec.size)}{left}"


def _notes(
    causes: Sequence[Cause], findings: Mapping[int, RankFinding], result: WorldResult
) -> Iterator[str]:
    for cause in causes[1:]:
        yield f"also {cause.kind}: {summary(cause, findings, result)}"
    yield from unfired_faults(result)
    yield from fault_notes(result)
    last = result.snapshots[-1] if result.snapshots else None
    if result.ending == "overrun" and last is not None and last.blockers:
        yield f"not proven before the deadline because {'; '.join(last.blockers[:3])}"
    if last is not None and causes[0].kind in _VAGUE:
        yield from last.unobserved
    if last is not None:
        yield from last.notes
