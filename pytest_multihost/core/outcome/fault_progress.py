"""Which of a world's faults have happened, when, and why the others have not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pytest_multihost.core.model.event import (
    Event,
    FaultChanged,
    HoldEnded,
    PointsPassed,
    ReleaseReason,
)
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.outcome.finding import Finding

_MAX_NAMED = 8
"""How many passed points are named for a fault that never fired."""


def firings(result: WorldResult, index: int) -> dict[int, list[float]]:
    """Return when a fault has happened, in monotonic seconds, by rank; only ranks it happened to.

    Args:
        index: The fault's index in the world's list.
    """
    begun = [e for e, change in _changes(result.history, index) if change.phase == "begun"]
    ranks = [rank for rank in result.spec.faults[index].ranks if isinstance(rank, int)]
    times = {rank: [each.at_s for each in begun if each.rank == rank] for rank in ranks}
    return {rank: found for rank, found in times.items() if found}


@dataclass(frozen=True, slots=True)
class HeldFor:
    """A rank that was held and released."""

    seconds: float
    reason: ReleaseReason


def releases(result: WorldResult, index: int) -> dict[int, list[HeldFor]]:
    """Return how long a fault has held ranks, and why it released them, by rank.

    Args:
        index: The fault's index in the world's list.
    """
    begun: dict[int, list[float]] = {}
    found: dict[int, list[HeldFor]] = {}
    for event in result.history:
        match event.body:
            case FaultChanged(index=at, phase="begun") if at == index:
                begun.setdefault(event.rank, []).append(event.at_s)
            case HoldEnded(at, reason) if at == index and begun.get(event.rank):
                seconds = event.at_s - begun[event.rank].pop(0)
                found.setdefault(event.rank, []).append(HeldFor(seconds, reason))
    return found


def _changes(history: Iterable[Event], index: int) -> Iterator[tuple[Event, FaultChanged]]:
    """Yield the changes of a fault, each with its event."""
    for event in history:
        if isinstance(event.body, FaultChanged) and event.body.index == index:
            yield event, event.body


def unfired_faults(result: WorldResult) -> list[str]:
    """Return a sentence for each fault that must happen, and has not happened to all its ranks."""
    names = result.spec.names
    found = []
    for index, fault in enumerate(result.spec.faults):
        fired = firings(result, index)
        missed = [rank for rank in fault.ranks if isinstance(rank, int) and rank not in fired]
        if not fault.must_fire or not missed or (fault.is_first and fired):
            continue
        # Armed: the rank has passed the point, but the action that was to follow has not happened.
        changes = _changes(result.history, index)
        if any(event.rank == missed[0] and now.phase == "armed" for event, now in changes):
            note = fault_note(result.history, index)
            why = f"it used no file that matches {fault.params.get('path', '')!r}"
            why += f" ({note})" if note else ""
        else:
            passed = _passed_points(result.history, missed[0], fault)
            why = f"{names.rank(missed[0])} passed {passed or 'no such point'}"
        found.append(f"{fault!r} never fired on {names.of(missed)}: {why}")
    return found


def fault_notes(result: WorldResult) -> list[str]:
    """Return the faults' notes for the reader of a verdict, without duplicates."""
    found = (fault_note(result.history, index) for index in range(len(result.spec.faults)))
    return list(dict.fromkeys(note for note in found if note))


def fault_note(history: Iterable[Event], index: int) -> str:
    """Return the first note of a fault for the reader of a verdict; empty if there is none."""
    notes = (change.note for _, change in _changes(history, index) if change.note)
    return next(notes, "")


def _passed_points(history: Iterable[Event], rank: int, fault: Fault) -> str:
    """Return the points of the fault's kind that a rank has passed, with counts."""
    for event in history:
        if isinstance(event.body, PointsPassed) and event.rank == rank:
            same = [each for each in event.body.passed if each[0] == fault.at.point]
            named = [_counted(*each) for each in same[:_MAX_NAMED]]
            return ", ".join([*named, "..."] if len(same) > _MAX_NAMED else named)
    return ""


def _counted(point: str, name: str, call: str, count: int) -> str:
    return f"{name or point}{f' ({call})' if call else ''} x{count}"


def require_fired(finding: Finding, result: WorldResult) -> Finding:
    """Return `finding`, as failed if the test passed but a required fault never fired.

    A test that did not pass keeps its own reason.
    """
    if finding.status == "passed" and (missing := unfired_faults(result)):
        return replace(finding, outcome="failed", status="failed", reason="; ".join(missing))
    return finding
