"""Build the diagnosis that people and programs read from causes: words, places, evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.blame.causes import Cause
from pytest_multihost.blame.partition_blame import describe_cut, network_evidence
from pytest_multihost.blame.rank_states import RankState
from pytest_multihost.blame.wait_graph import States, Wait, broken_by
from pytest_multihost.model.event import Exited, RankEventBody
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.operation import Operation, group_by_value, rank_set
from pytest_multihost.model.result import Ending, WorldResult
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
from pytest_multihost.outcome import Finding, describe_exit
from pytest_multihost.outcome.faults import fault_notes, frozen_for_good, unfired_faults

DETECTED_BY: Mapping[Ending, DetectedBy] = {
    "proof": "proof",
    "mismatch": "mismatch",
    "stopped": "stopped",
    "overrun": "deadline",
    "startup-overrun": "deadline",
}
"""How it was detected that a world hangs; any other ending is an event of a rank."""

_VAGUE = frozenset({"stuck", "unknown", "transport", "straggler"})
"""Kinds for which more observations might give a more precise diagnosis."""

_MAX_BLOCKERS = 3
_DIGITS = 4  # of seconds in a verdict


def build_diagnosis(
    causes: Sequence[Cause],
    states: States,
    result: WorldResult,
    finding: Finding,
    context: SourceContext,
) -> Diagnosis:
    """Return the diagnosis of a world.

    Args:
        causes: At least one: the first is the diagnosis, the others become notes.
        states: Of all ranks.
        result: What was observed of the world.
        finding: What happened to it.
        context: Names files, and reads lines of them.
    """
    cause = causes[0]
    # When a rank last made progress, sent an event, or died by itself.
    last_progress_s = result.progress_s or max(
        (
            event.at_s
            for event in result.history
            if isinstance(event.body, RankEventBody)
            or (isinstance(event.body, Exited) and not event.body.by_harness)
        ),
        default=result.started_s,
    )
    judged_s = result.detected_s or result.ended_s
    silent_s = round(max(0.0, judged_s - last_progress_s), _DIGITS)
    by_event: DetectedBy = "exit" if cause.kind == "died" else "raise"
    # The phase is the first culprit's, unless it had left the test.
    has_left = cause.kind in ("finished", "died", "raised")
    first_rank, *_ = (*(() if has_left else cause.culprits), *cause.waiting, *cause.culprits, 0)
    return Diagnosis(
        kind=cause.kind,
        confidence=cause.confidence,
        phase=finding.ranks[first_rank].facts.phase,
        culprits=cause.culprits,
        waiting=cause.waiting,
        cycle=cause.cycle,
        waits_for=tuple(
            WaitsFor(wait.rank, _name(wait.operation), tuple(sorted(wait.missing)))
            for wait in _first_waits(cause)
        ),
        operation=_name(cause.operation),
        where=_where(cause, states, result, finding, context),
        silent_s=silent_s,
        detected_after_s=silent_s,
        detected_by=DETECTED_BY.get(result.ending, by_event),
        summary=summarize(cause, finding, result),
        evidence=tuple(_evidence(cause, states, result, finding)),
        groups=tuple(_place_groups(result, context)),
        notes=tuple(_notes(causes, result, finding)),
    )


def _first_waits(cause: Cause) -> list[Wait]:
    """Return the first wait of each rank that belongs to the cause."""
    by_rank = group_by_value((wait.rank, wait) for wait in cause.concerned_waits)
    return [waits[0] for waits in by_rank.values()]


def _name(operation: Operation | None) -> OperationName | None:
    if operation is None:
        return None
    return OperationName(operation.name, operation.sequence, operation.group)


# Where


def _where(
    cause: Cause, states: States, result: WorldResult, finding: Finding, context: SourceContext
) -> CulpritPlace | None:
    """Return the first culprit's innermost frame in the user's own code.

    If it has left the operation that the others wait in, the line that began that operation.
    """
    if not cause.culprits:
        return None
    rank = cause.culprits[0]
    state, error = states[rank], finding.ranks[rank].error
    frame = None
    if cause.kind == "transport" and cause.operation is not None:
        left = broken_by(cause.operation, state)
        frame = left.frame if left is not None else None
    elif state.condition == "raised" and error is not None and error.file and error.line:
        frame = Frame(error.file, error.line, error.function or "")
    elif state.condition != "finished":
        dump = next((each for each in result.dumps if each.rank == rank and each.main), None)
        frames = inside_the_test(dump.main.frames) if dump is not None and dump.main else []
        pending = (each.frame for each in state.pending if each.frame is not None)
        frame = innermost_user_frame(frames) or next(pending, None)
    if frame is None:
        return None
    at = context.place(frame)
    return CulpritPlace(rank, at.file, at.line, at.function, at.source)


def _place_groups(result: WorldResult, context: SourceContext) -> Iterator[PlaceGroup]:
    """Yield where the ranks' main threads were: the user's frames and the calls inside them."""
    for group in group_by_main_stack(result.dumps):
        inside = inside_the_test(group.frames)
        last_user = next((i for i, f in enumerate(inside) if not is_library(f.file)), 0)
        shown: tuple[Place, ...] = tuple(map(context.place, inside[max(0, last_user - 1) :]))
        yield PlaceGroup(group.ranks, shown)


# Evidence


def _evidence(
    cause: Cause, states: States, result: WorldResult, finding: Finding
) -> Iterator[Evidence]:
    for wait in _first_waits(cause):
        operation = wait.operation
        if operation is not None and wait.rank not in cause.culprits:
            fact = f"entered {operation.describe(result.spec.size)}"
            since_s = round(operation.since_s - result.started_s, _DIGITS)
            yield Evidence(wait.rank, fact, operation.source, at_s=since_s)
    for rank in cause.culprits:
        state, found = states[rank], finding.ranks[rank]
        if state.condition == "died" and found.facts.exit is not None:
            yield Evidence(rank, describe_exit(found.facts.exit), "pidfd")
        if state.condition == "raised" and found.at_s is not None:
            at_s = round(found.at_s - result.started_s, _DIGITS)
            yield Evidence(rank, f"raised {found.summary}", "pytest", at_s=at_s)
        if state.condition == "finished" and found.facts.parked_s is not None:
            at_s = round(found.facts.parked_s - result.started_s, _DIGITS)
            yield Evidence(rank, "left the test", "pytest", at_s=at_s)
        if cause.operation is not None and cause.operation.kind == "collective":
            yield Evidence(rank, _last_in_group(state, cause.operation, result), "recorder")
        seen = state.seen
        if seen.label is not None and state.condition == "alive":
            yield Evidence(rank, f"main thread {seen.label}: {seen.activity or ''}", "proc")
    yield from network_evidence(result)


def _last_in_group(state: RankState, operation: Operation, result: WorldResult) -> str:
    """Return as words the last operation of a rank in the group of `operation`."""
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


def _notes(causes: Sequence[Cause], result: WorldResult, finding: Finding) -> Iterator[str]:
    for cause in causes[1:]:
        yield f"also {cause.kind}: {summarize(cause, finding, result)}"
    yield from unfired_faults(result)
    yield from fault_notes(result)
    last = result.last_snapshot
    if last is None:
        return
    if result.ending == "overrun" and last.blockers:
        yield f"not proven before the deadline because {'; '.join(last.blockers[:_MAX_BLOCKERS])}"
    if causes[0].kind in _VAGUE:
        yield from last.unobserved
    yield from last.notes


# The summary

_OF_FROZEN = frozenset({"stopped", "straggler", "stuck"})


def summarize(cause: Cause, finding: Finding, result: WorldResult) -> str:
    """Return one line: the culprits, and the operation in which the other ranks wait for them."""
    size = result.spec.size
    if fault := planned_freeze(cause, result):
        return f"{_who_is(cause)} frozen by {fault!r}{_waiters(cause, size)}"
    if cause.kind in _SENTENCES:
        what = finding.ranks[cause.culprits[0]].summary
        who = rank_set(cause.culprits)
        sentence = _SENTENCES[cause.kind].format(who=who, who_is=_who_is(cause), what=what)
        return f"{sentence}{_waiters(cause, size)}"
    return _SUMMARIES[cause.kind](cause, finding, result)


def planned_freeze(cause: Cause, result: WorldResult) -> Fault | None:
    """Return the fault that keeps the culprits frozen, if faults freeze all of them for good."""
    frozen = frozen_for_good(result.spec.faults, result.history)
    is_planned = bool(cause.culprits) and frozen.keys() >= set(cause.culprits)
    return frozen[cause.culprits[0]] if is_planned and cause.kind in _OF_FROZEN else None


def _who_is(cause: Cause) -> str:
    return f"{rank_set(cause.culprits)} {'is' if len(cause.culprits) == 1 else 'are'}"


def _waiters(cause: Cause, size: int) -> str:
    """Return the waiting ranks as in "; ranks 1-3 wait for it in all_reduce #3 (world group)"."""
    if not cause.waiting:
        return ""
    them = "it" if len(cause.culprits) == 1 else "them"
    where = f" in {cause.operation.describe(size)}" if cause.operation else ""
    return f"; {rank_set(cause.waiting)} {_wait(cause)} for {them}{where}"


def _wait(cause: Cause) -> str:
    return "waits" if len(cause.waiting) == 1 else "wait"


_SENTENCES: Mapping[Kind, str] = {
    "finished": "{who} returned from the test",
    "raised": "{who} raised {what}",
    "died": "{who} {what}",
    "stopped": "{who_is} stopped from outside the test",
    "gil_held": "native code in {who} holds the GIL",
}
"""Sentences for kinds in which the culprits' own state says enough; the waiters are appended."""


def _straggler(cause: Cause, _: Finding, result: WorldResult) -> str:
    who, operation = rank_set(cause.culprits), cause.operation
    if operation is None:
        return f"{rank_set(cause.waiting)} wait for a lock that {who} holds"
    words = operation.describe(result.spec.size)
    if operation.kind == "collective":
        return f"{who} never reached {words}"
    waiter = next((w.rank for w in cause.waits if w.operation is operation), cause.waiting[0])
    if operation.kind == "transfer":
        return f"{who} never did its part in {words} of rank {waiter}"
    waiting = f"{rank_set(cause.waiting)} {_wait(cause)}"
    return f"{waiting} in {words} for something that {who} did not provide"


def _mismatch(cause: Cause, _: Finding, result: WorldResult) -> str:
    ranks_in: dict[str, list[int]] = {}
    for wait in cause.waits:
        if wait.is_mismatch and wait.operation is not None:
            words, root = wait.operation.describe(result.spec.size), wait.operation.root
            words += f" from rank {root}" if root is not None else ""
            ranks_in.setdefault(words, []).append(wait.rank)
    ordered = sorted(ranks_in.items(), key=lambda each: (len(each[1]), each[1]))
    parts = [f"{rank_set(ranks)} in {words}" for words, ranks in ordered]
    return " where ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _deadlock(cause: Cause, _: Finding, result: WorldResult) -> str:
    parts = []
    for rank, ahead in zip(cause.cycle, (*cause.cycle[1:], *cause.cycle[:1]), strict=True):
        wait = next((w for w in cause.waits if w.rank == rank and ahead in w.missing), None)
        operation = wait.operation if wait is not None else None
        words = operation.describe(result.spec.size) if operation else "the lock of a file"
        parts.append(f"rank {rank} waits in {words} for rank {ahead}")
    who = rank_set(cause.cycle or cause.waiting)
    return f"{who} wait for each other: {', '.join(parts)}"


def _transport(cause: Cause, _: Finding, result: WorldResult) -> str:
    operation, size = cause.operation, result.spec.size
    words = operation.describe(size) if operation else "an operation"
    if cause.culprits:
        error = f"{rank_set(cause.culprits)} left {words} by {cause.error}"
        return f"{error}{_waiters(replace(cause, operation=None), size)}"
    if cause.cut is not None:
        inside = {w.rank for w in cause.waits if w.operation and w.rank in cause.waiting}
        has = "has" if len(inside) == 1 else "have"
        return f"{rank_set(inside)} {has} entered {words}, and {describe_cut(cause.cut)}"
    members = operation.group if operation is not None else ()
    entered = [rank for rank in cause.waiting if rank in members] or cause.waiting
    return f"{rank_set(entered)} have entered {words}, and nothing moves"


def _stuck(cause: Cause, finding: Finding, result: WorldResult) -> str:
    phase = finding.ranks[cause.culprits[0]].facts.phase
    own = [w.operation for w in cause.waits if w.rank in cause.culprits and w.operation]
    where = f" in {own[0].describe(result.spec.size)}" if own else ""
    them = "it" if len(cause.culprits) == 1 else "them"
    return f"{_who_is(cause)} stuck in {phase}{where}, and nobody waits for {them}"


def _unknown(_: Cause, finding: Finding, result: WorldResult) -> str:
    late = [each.facts.rank for each in finding.ranks if each.outcome == "hung"]
    if not late:
        return result.reason or "the world did not end"
    return f"{rank_set(late)} did not end; nothing tells who is waited for"


_SUMMARIES: Mapping[Kind, Callable[[Cause, Finding, WorldResult], str]] = {
    "straggler": _straggler,
    "livelock": lambda *args: f"{_straggler(*args)}: it is busy, or waits again and again",
    "mismatch": _mismatch,
    "deadlock": _deadlock,
    "transport": _transport,
    "stuck": _stuck,
    "unknown": _unknown,
}
