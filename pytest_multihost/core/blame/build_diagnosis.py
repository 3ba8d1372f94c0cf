"""Build the diagnosis that people and programs read from causes: words, places, evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from pytest_multihost.core.blame.causes import Cause, size_notes
from pytest_multihost.core.blame.inferred import (
    called_functions,
    operations_in_calls,
    with_threads,
)
from pytest_multihost.core.blame.partition_blame import effect_evidence
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States, Wait, broken_by
from pytest_multihost.core.model.event import Exited, RankEventBody
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.operation import Operation, group_by_value, rank_set
from pytest_multihost.core.model.result import Ending, WorldResult, WorldSnapshot
from pytest_multihost.core.model.spec import phase_name
from pytest_multihost.core.model.stack import (
    Frame,
    SourceContext,
    called_in_threads,
    group_by_main_stack,
    innermost_user_frame,
    inside_the_test,
    is_library,
)
from pytest_multihost.core.model.verdict import (
    DetectedBy,
    Diagnosis,
    Evidence,
    Kind,
    OperationName,
    Place,
    PlaceGroup,
    RankPlace,
    Sentence,
    Span,
    WaitsFor,
    sentence,
)
from pytest_multihost.core.outcome import Finding, describe_exit
from pytest_multihost.core.outcome.active_faults import frozen_for_good
from pytest_multihost.core.outcome.fault_progress import fault_notes, unfired_faults

DETECTED_BY: Mapping[Ending, DetectedBy] = {
    "proof": "proof",
    "mismatch": "mismatch",
    "stopped": "stopped",
    "overrun": "deadline",
    "startup-overrun": "deadline",
    "dumps": "dumps",
    "seen": "attach",
}
"""How it was detected that a world hangs; any other ending is an event of a rank."""

_VAGUE = frozenset({"stuck", "unknown", "transport", "straggler"})
"""Kinds for which more observations might give a more precise diagnosis."""

_MAX_BLOCKERS = 3
_LAST_RUNS = 8
"""Of so many last snapshots, four a second, a rank that has run in one was not still."""

_DECLARE = (
    "what the ranks wait for was not recorded: `pytest_multihost.operation(...)` around a wait"
    " of their own tells for which ranks it is"
)
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
    waits_for = tuple(
        WaitsFor(wait.rank, _name(wait.operation), tuple(sorted(wait.missing)))
        for wait in _first_waits(cause)
    )
    in_calls = operations_in_calls(result, cause.culprits, _name(cause.operation), waits_for)
    # Where a diagnosis is about a thread that runs a function for others, so is what is shown.
    result = replace(result, dumps=with_threads(result.dumps, in_calls))
    places = tuple(_places(cause, states, result, finding, context))
    return Diagnosis(
        kind=cause.kind,
        confidence=cause.confidence,
        phase=finding.ranks[first_rank].facts.phase,
        culprits=cause.culprits,
        waiting=cause.waiting,
        cycle=cause.cycle,
        waits_for=waits_for,
        operation=_name(cause.operation),
        where=_where(cause, states, result, finding, context),
        places=places,
        silent_s=silent_s,
        detected_after_s=silent_s,
        detected_by=DETECTED_BY.get(result.ending, by_event),
        headline=sentence(_headline(cause, finding, result), _waiting_line(cause, places)),
        evidence=tuple(_evidence(cause, states, result, finding)),
        groups=tuple(_place_groups(result, context)),
        notes=(
            *size_notes(causes, states, finding),
            *_notes(causes, result, finding),
        ),
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
) -> RankPlace | None:
    """Return the first culprit's innermost frame in the user's own code.

    If it has left the operation that the others wait in, the line that began that operation.
    """
    if not cause.culprits:
        return None
    rank = cause.culprits[0]
    frame = _user_frame(rank, states[rank], result, finding)
    if cause.kind == "transport" and cause.operation is not None:
        left = broken_by(cause.operation, states[rank])
        frame = left.frame if left is not None else None
    return _place(rank, frame, context) if frame is not None else None


def _places(
    cause: Cause, states: States, result: WorldResult, finding: Finding, context: SourceContext
) -> Iterator[RankPlace]:
    """Yield the user's line of each rank that waits or is waited for, as far as it has one.

    Of a rank that waits in an operation, the line of that operation: its main thread may be
    elsewhere.
    """
    waited = {wait.rank: wait.operation.frame for wait in _first_waits(cause) if wait.operation}
    for rank in sorted({*cause.waiting, *cause.culprits, *cause.cycle}):
        frame = waited.get(rank) or _user_frame(rank, states[rank], result, finding)
        if frame is not None:
            yield _place(rank, frame, context)


def _user_frame(rank: int, state: RankState, result: WorldResult, finding: Finding) -> Frame | None:
    """Return a rank's innermost frame in the user's own code, None if it has left the test."""
    error = finding.ranks[rank].error
    if state.condition == "raised" and error is not None and error.file and error.line:
        return Frame(error.file, error.line, error.function or "")
    if state.condition == "finished":
        return None
    dump = next((each for each in result.dumps if each.rank == rank and each.main), None)
    thread = dump.main if dump is not None else None
    frames = inside_the_test(thread.frames) if thread is not None else []
    called = called_in_threads(dump) if dump is not None else ()
    if len(called) == 1:
        return called[0]
    pending = (each.frame for each in state.pending if each.frame is not None)
    return innermost_user_frame(frames) or next(pending, None)


def _place(rank: int, frame: Frame, context: SourceContext) -> RankPlace:
    at = context.place(frame)
    return RankPlace(rank, at.file, at.line, at.function, at.source)


def _place_groups(result: WorldResult, context: SourceContext) -> Iterator[PlaceGroup]:
    """Yield where the ranks' threads were: the user's frames and the calls inside them."""
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
        elif operation is None and states[wait.rank].polls:
            yield Evidence(wait.rank, "main thread sleeps again and again", "proc")
    subject = result.spec.subject
    told_by = "pytest" if subject == "test" else "harness"
    for rank in cause.culprits:
        state, found = states[rank], finding.ranks[rank]
        if state.condition == "died" and found.facts.exit is not None:
            yield Evidence(rank, describe_exit(found.facts.exit), "pidfd")
        if state.condition == "raised" and found.at_s is not None:
            at_s = round(found.at_s - result.started_s, _DIGITS)
            yield Evidence(rank, f"raised {found.summary}", told_by, at_s=at_s)
        if state.condition == "finished" and found.facts.parked_s is not None:
            at_s = round(found.facts.parked_s - result.started_s, _DIGITS)
            yield Evidence(rank, f"left the {subject}", told_by, at_s=at_s)
        # Frames alone show where a rank is, and nothing of what it has entered before.
        is_counted = cause.operation is not None and result.ending != "seen"
        if cause.operation is not None and is_counted and cause.operation.kind == "collective":
            yield _last_in_group(state, cause.operation, result)
        yield from _functions_for_others(state)
        seen = state.seen
        if seen.label is not None and state.condition == "alive":
            yield Evidence(rank, f"main thread {seen.label}: {seen.activity or ''}", "proc")
    yield from effect_evidence(result)


def _functions_for_others(state: RankState) -> Iterator[Evidence]:
    """Yield what functions a rank runs for others, and its own calls that wait meanwhile."""
    functions = called_functions(state.known)
    for each in functions:
        fact = f"runs {each.detail}, which another rank has called"
        yield Evidence(state.rank, fact, each.source)
    for each in state.pending if functions else ():
        if each.kind == "transfer" and each.frame is not None:
            at = f"{PurePath(each.frame.file).name}:{each.frame.line}"
            fact = f"another thread waits in {each.title} at {at}"
            yield Evidence(state.rank, fact, each.source)


def _last_in_group(state: RankState, operation: Operation, result: WorldResult) -> Evidence:
    """Return the last operation of a rank in the group of `operation`."""
    theirs = [
        each
        for each in state.known
        if each.kind == "collective" and each.group_key == operation.group_key
    ]
    last = max(theirs, key=lambda each: each.sequence, default=None)
    if last is None:
        return Evidence(state.rank, "entered no operation of this group", "recorder")
    left = f", which it left by {last.error}" if last.error else ""
    fact = f"its last operation in this group was {last.describe(result.spec.size)}{left}"
    return Evidence(state.rank, fact, "recorder")


def _notes(causes: Sequence[Cause], result: WorldResult, finding: Finding) -> Iterator[str]:
    for cause in causes[1:]:
        words = "".join(span.text for span in _headline(cause, finding, result))
        yield f"also {cause.kind}: {words}"
    yield from unfired_faults(result)
    yield from fault_notes(result)
    last = result.last_snapshot
    if last is not None:
        yield from _notes_of_snapshot(last, causes[0], result.ending)
    is_unknown = causes[0].kind == "unknown" and result.ending == "overrun"
    if is_unknown and last is not None and not last.unobserved:
        yield _DECLARE


def _notes_of_snapshot(last: WorldSnapshot, cause: Cause, ending: Ending) -> Iterator[str]:
    if ending == "overrun" and (found := last.blockers[:_MAX_BLOCKERS] or _moving(last)):
        yield f"not proven before the deadline because {'; '.join(found)}"
    if cause.kind in _VAGUE:
        yield from last.unobserved
    yield from last.notes


def _moving(last: WorldSnapshot) -> tuple[str, ...]:
    """Return as a sentence which ranks have run to the end: no proof was even begun."""
    ranks = [each.rank for each in last.ranks if any(each.recent_runs[-_LAST_RUNS:])]
    verb = "runs, or wakes up" if len(ranks) == 1 else "run, or wake up"
    return (f"{rank_set(ranks)} {verb} again and again",) if ranks else ()


# The headline

_OF_FROZEN = frozenset({"stopped", "straggler", "stuck"})


def _headline(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    """Return one line: the culprits, and the operation in which the other ranks wait for them."""
    size, is_one = result.spec.size, len(cause.culprits) == 1
    if fault := planned_freeze(cause, result):
        frozen = f" {'is' if is_one else 'are'} frozen by {fault!r}"
        return sentence(_ranks(cause.culprits, cause), frozen, _waiters(cause, size))
    if cause.kind in _SENTENCES:
        before, after = _SENTENCES[cause.kind]
        what = finding.ranks[cause.culprits[0]].summary
        be, subject = "is" if is_one else "are", result.spec.subject
        after = after.format(what=what, be=be, subject=subject)
        return sentence(before, _ranks(cause.culprits, cause), after, _waiters(cause, size))
    return _HEADLINES[cause.kind](cause, finding, result)


def planned_freeze(cause: Cause, result: WorldResult) -> Fault | None:
    """Return the fault that keeps the culprits frozen, if faults freeze all of them for good."""
    frozen = frozen_for_good(result.spec.faults, result.history)
    is_planned = bool(cause.culprits) and frozen.keys() >= set(cause.culprits)
    return frozen[cause.culprits[0]] if is_planned and cause.kind in _OF_FROZEN else None


def _ranks(ranks: Sequence[int], cause: Cause) -> Sentence:
    return (Span(rank_set(ranks), "culprit" if set(ranks) == set(cause.culprits) else ""),)


def _words(operation: Operation | None, size: int, otherwise: str = "") -> Sentence:
    """Return the text of an operation, or another one if there is none."""
    if operation is None:
        return sentence(otherwise)
    if group := operation.group_name(size):
        return sentence(f"{operation.title} ", (Span(f"({group})", "group"),))
    return sentence(operation.title)


def _waiters(cause: Cause, size: int) -> Sentence:
    """Return the waiting ranks as in "; ranks 1-3 wait for it in all_reduce #3 (world group)"."""
    if not cause.waiting:
        return ()
    them = "it" if len(cause.culprits) == 1 else "them"
    where = sentence(" in ", _words(cause.operation, size)) if cause.operation else ()
    return sentence(f"; {rank_set(cause.waiting)} {_wait(cause)} for {them}", where)


def _waiting_line(cause: Cause, places: Sequence[RankPlace]) -> str:
    """Return the line at which the others wait for a culprit that has none itself any more."""
    if cause.kind not in ("finished", "died"):
        return ""
    waits = (each for each in cause.concerned_waits if each.operation is cause.operation)
    ranks = [wait.rank for wait in waits if wait.rank in cause.waiting][:1]
    at = next((each for each in places if each.rank in ranks), None)
    return f" at {at.file}:{at.line}" if at is not None else ""


def _wait(cause: Cause) -> str:
    return "waits" if len(cause.waiting) == 1 else "wait"


_SENTENCES: Mapping[Kind, tuple[str, str]] = {
    "finished": ("", " returned from the {subject}"),
    "raised": ("", " raised {what}"),
    "died": ("", " {what}"),
    "stopped": ("", " {be} stopped from outside the {subject}"),
    "gil_held": ("native code in ", " holds the GIL"),
}
"""What is before and behind the culprits where their own state says enough, without the waiters."""


def _straggler(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    who, operation = _ranks(cause.culprits, cause), cause.operation
    if operation is None:
        return sentence(f"{rank_set(cause.waiting)} wait for a lock that ", who, " holds")
    words = _words(operation, result.spec.size)
    if operation.kind == "collective":
        return sentence(who, " never reached ", words)
    waiter = next((w.rank for w in cause.waits if w.operation is operation), cause.waiting[0])
    if operation.kind == "transfer":
        return sentence(who, " never did its part in ", words, f" of rank {waiter}")
    waiting = f"{rank_set(cause.waiting)} {_wait(cause)} in "
    return sentence(waiting, words, " for something that ", who, " did not provide")


def _mismatch(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    """Return the culprits' side first; on a tie, the smallest side."""
    ranks_in: dict[Sentence, list[int]] = {}
    for wait in _sides_of_mismatch(cause):
        if wait.operation is not None:
            root, frame = wait.operation.root, wait.operation.frame
            from_root = f" from rank {root}" if root is not None else ""
            at = ""
            if frame is not None and wait.operation.source == "native-frames":
                at = f" at {PurePath(frame.file).name}:{frame.line}"
            words = sentence(_words(wait.operation, result.spec.size), from_root, at)
            ranks_in.setdefault(words, []).append(wait.rank)
    ordered = sorted(
        ranks_in.items(),
        key=lambda each: (not {*each[1]} & {*cause.culprits}, len(each[1]), each[1]),
    )
    of_culprits = sum(not {*cause.culprits}.isdisjoint(ranks) for _, ranks in ordered)
    first_other = of_culprits or len(ordered) - 1
    found: Sentence = ()
    for number, (words, ranks) in enumerate(ordered):
        between = " where " if number == first_other else ", " if number else ""
        found = sentence(found, between, _ranks(ranks, cause), " in ", words)
    return found


def _sides_of_mismatch(cause: Cause) -> Iterator[Wait]:
    """Yield one wait of each rank of all sides.

    A rank whose operation let it pass waits in a later one of that group.
    """
    group = cause.operation.group_key if cause.operation is not None else None
    is_told = any(wait.is_mismatch for wait in cause.waits)  # else the programs' lines differ
    waits = [wait for wait in cause.concerned_waits if wait.operation is not None]
    for rank, theirs in group_by_value((wait.rank, wait) for wait in waits).items():
        mismatched = [wait for wait in theirs if wait.is_mismatch]
        inside = [wait for wait in theirs if wait.operation and wait.operation.group_key == group]
        is_side = not is_told or rank in cause.culprits
        yield from (mismatched or inside or (theirs if is_side else []))[:1]


def _deadlock(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    found = sentence(_ranks(cause.cycle or cause.waiting, cause), " wait for each other: ")
    for rank, ahead in zip(cause.cycle, (*cause.cycle[1:], *cause.cycle[:1]), strict=True):
        wait = next((w for w in cause.waits if w.rank == rank and ahead in w.missing), None)
        operation = wait.operation if wait is not None else None
        words = _words(operation, result.spec.size, otherwise="the lock of a file")
        between = "" if rank == cause.cycle[0] else ", "
        found = sentence(found, f"{between}rank {rank} waits in ", words, f" for rank {ahead}")
    return found


def _transport(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    operation, size = cause.operation, result.spec.size
    words = _words(operation, size, otherwise="an operation")
    if cause.culprits:
        waiters = _waiters(replace(cause, operation=None), size)
        who = _ranks(cause.culprits, cause)
        return sentence(who, " left ", words, f" by {cause.error}", waiters)
    if cause.cut is not None:
        inside = {w.rank for w in cause.waits if w.operation and w.rank in cause.waiting}
        has = "has" if len(inside) == 1 else "have"
        cut = f", and {cause.cut.words}"
        return sentence(f"{rank_set(inside)} {has} entered ", words, cut)
    members = operation.group if operation is not None else ()
    entered = [rank for rank in cause.waiting if rank in members] or cause.waiting
    return sentence(f"{rank_set(entered)} have entered ", words, ", and nothing moves")


def _stuck(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    facts, subject = finding.ranks[cause.culprits[0]].facts, result.spec.subject
    phase = phase_name(facts.phase, subject)
    own = [w.operation for w in cause.waits if w.rank in cause.culprits and w.operation]
    where = sentence(" in ", _words(own[0], result.spec.size)) if own else ()
    be, them = ("is", "it") if len(cause.culprits) == 1 else ("are", "them")
    who = _ranks(cause.culprits, cause)
    return sentence(who, f" {be} stuck in {phase}", where, f", and nobody waits for {them}")


def _unknown(_: Cause, finding: Finding, result: WorldResult) -> Sentence:
    late = [each.facts.rank for each in finding.ranks if each.outcome == "hung"]
    if not late:
        return sentence(result.reason or "the world did not end")
    return sentence(f"{rank_set(late)} did not end; it is unknown which rank is waited for")


_HEADLINES: Mapping[Kind, Callable[[Cause, Finding, WorldResult], Sentence]] = {
    "straggler": _straggler,
    "livelock": lambda *args: sentence(_straggler(*args), ": it is busy, or waits again and again"),
    "mismatch": _mismatch,
    "deadlock": _deadlock,
    "transport": _transport,
    "stuck": _stuck,
    "unknown": _unknown,
}
