"""What has become of a world's faults: which have happened, and which still go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_multihost.model.event import Event, Exited, FaultChanged, PointsPassed
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.operation import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.outcome.finding import Finding

_MAX_NAMED = 8
"""Passed points that are named for somebody whose fault has missed its own."""


def firings(result: WorldResult, index: int) -> dict[int, list[float]]:
    """Return when a fault has happened, in monotonic seconds, by rank; only ranks it happened to.

    Args:
        result: The world.
        index: The fault's place among the world's.
    """
    begun = [e for e, change in _changes(result.history, index) if change.phase == "begun"]
    ranks = [rank for rank in result.spec.faults[index].ranks if isinstance(rank, int)]
    times = {rank: [each.at_s for each in begun if each.rank == rank] for rank in ranks}
    return {rank: found for rank, found in times.items() if found}


def _changes(history: Iterable[Event], index: int) -> Iterator[tuple[Event, FaultChanged]]:
    """Yield what has changed about a fault, with the event that says so."""
    for event in history:
        if isinstance(event.body, FaultChanged) and event.body.index == index:
            yield event, event.body


def unfired_faults(result: WorldResult) -> list[str]:
    """Return a sentence for each fault that must happen, and has not happened to all its ranks."""
    found = []
    for index, fault in enumerate(result.spec.faults):
        fired = firings(result, index)
        missed = [rank for rank in fault.ranks if isinstance(rank, int) and rank not in fired]
        if fault.must_fire and missed:
            found.append(_describe_missed(index, fault, missed, result.history))
    return found


def fault_notes(result: WorldResult) -> list[str]:
    """Return what the reader of a verdict should know of its faults, each thing once."""
    found = (fault_note(result.history, index) for index in range(len(result.spec.faults)))
    return list(dict.fromkeys(note for note in found if note))


def fault_note(history: Iterable[Event], index: int) -> str:
    """Return what the reader of a verdict should know of a fault; empty where there is nothing."""
    notes = (change.note for _, change in _changes(history, index) if change.note)
    return next(notes, "")


def _describe_missed(
    index: int, fault: Fault, missed: Sequence[int], history: Sequence[Event]
) -> str:
    names = rank_set(missed)
    rank = missed[0]
    # Armed: the rank has passed the point, and only what was to happen from there on has not.
    if any(e.rank == rank and now.phase == "armed" for e, now in _changes(history, index)):
        path = fault.params.get("path", "")
        note = fault_note(history, index)
        more = f" ({note})" if note else ""
        return f"{fault!r} never fired on {names}: it used no file that matches {path!r}{more}"
    passed = _passed_points(history, rank, fault)
    return f"{fault!r} never fired on {names}: rank {rank} passed {passed or 'none such'}"


def _passed_points(history: Iterable[Event], rank: int, fault: Fault) -> str:
    """Return which points of the kind that a fault waited for a rank has passed, with counts."""
    for event in history:
        if isinstance(event.body, PointsPassed) and event.rank == rank:
            same = [each for each in event.body.passed if each[0] == fault.at.point]
            named = [f"{name or point} x{count}" for point, name, count in same[:_MAX_NAMED]]
            return ", ".join([*named, "..."] if len(same) > _MAX_NAMED else named)
    return ""


def require_fired(finding: Finding, result: WorldResult) -> Finding:
    """Return `finding`, or that a test which passed has failed because a fault did not happen.

    A test that did not pass has a cause of its own, which stays the one that is told.
    """
    missing = unfired_faults(result) if finding.status == "passed" else []
    if not missing:
        return finding
    return replace(finding, outcome="failed", status="failed", reason="; ".join(missing))


# Faults that go on: while one of them will still do something, nothing is proven to hang

LATE_S = 0.5
"""How much later than planned the end of a fault may come on a busy machine."""


def has_pending_actions(events: Iterable[Event], now: float) -> bool:
    """Return whether faults will still do something by themselves.

    Args:
        events: The world's history so far, or the faults in it that are not over.
        now: Monotonic seconds.
    """
    ends_s = [begun.until_s for _, begun in _ongoing(events) if begun.until_s is not None]
    return any(until_s + LATE_S > now for until_s in ends_s)


def continued_by_plan(events: Iterable[Event]) -> frozenset[int]:
    """Return the ranks that faults stop now and continue later, once or in turns.

    One that is frozen for good is not among them: nothing will continue it.
    """
    return frozenset(
        rank
        for rank, begun in _ongoing(events)
        if begun.pause is not None and (begun.pause.until_s is not None or begun.pause.running_s)
    )


def frozen_for_good(faults: Sequence[Fault], events: Iterable[Event]) -> dict[int, Fault]:
    """Return the ranks that faults stop and nothing continues, with the fault of each.

    The harness ends frozen ranks, too: what it has ended was frozen until then.
    """
    if not any(each.kind == "freeze" for each in faults):
        return {}
    until_ended = (
        each for each in events if not (isinstance(each.body, Exited) and each.body.by_harness)
    )
    return {
        rank: faults[begun.index]
        for rank, begun in _ongoing(until_ended)
        if begun.fault == "freeze" and begun.until_s is None
    }


def _ongoing(events: Iterable[Event]) -> list[tuple[int, FaultChanged]]:
    """Return, with their ranks, the beginnings of faults that are not over, the last of each.

    A fault of a rank is over when it says so, or with the rank's process.
    """
    open_: dict[tuple[int, int], FaultChanged] = {}
    for event in events:
        match event.body:
            case FaultChanged(index=index, phase="begun") as begun:
                open_[event.rank, index] = begun
            case FaultChanged(index=index):
                open_.pop((event.rank, index), None)
            case Exited():
                open_ = {key: value for key, value in open_.items() if key[0] != event.rank}
    return [(rank, begun) for (rank, _), begun in open_.items()]
