"""What became of a world's faults: where and when they happened, and which did not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pytest_multihost.model.event import Event
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.outcome.judge import Finding

_MAX_NAMED = 8
"""Points that are named for somebody whose fault has missed its own."""


def firings(history: Iterable[Event], index: int, rank: int) -> list[float]:
    """Return when a fault has happened to a rank, in monotonic seconds.

    Args:
        history: Of the world.
        index: The fault's place among the world's.
        rank: Whom.
    """
    return [
        event.at_s
        for event in history
        if event.kind == "fault"
        and (event.rank, event.detail["index"], event.detail["phase"]) == (rank, index, "begun")
    ]


def fault_records(result: WorldResult) -> tuple[dict[str, Any], ...]:
    """Return the verdict's `faults`."""
    records = []
    for index, fault in enumerate(result.spec.faults):
        fired = {
            str(rank): [round(at_s - result.started_s, 4) for at_s in found]
            for rank in fault.ranks
            if isinstance(rank, int) and (found := firings(result.history, index, rank))
        }
        note = _note(result.history, index)
        told = {"note": note} if note else {}
        records.append({**fault.to_json(), "fired": fired, **told})
    return tuple(records)


def unfired(result: WorldResult) -> list[str]:
    """Return, of each fault that did not happen to all of its ranks, what is to be told of it."""
    found = []
    for index, fault in enumerate(result.spec.faults):
        missed = [
            rank
            for rank in fault.ranks
            if isinstance(rank, int) and not firings(result.history, index, rank)
        ]
        if fault.must_fire and missed:
            found.append(_told(index, fault, missed, result.history))
    return found


def fault_notes(result: WorldResult) -> list[str]:
    """Return what the reader of a verdict should know of its faults, each thing once."""
    found = (_note(result.history, index) for index in range(len(result.spec.faults)))
    return list(dict.fromkeys(note for note in found if note))


def _note(history: Iterable[Event], index: int) -> str:
    for event in history:
        if event.kind == "fault" and event.detail["index"] == index and "note" in event.detail:
            return str(event.detail["note"])
    return ""


def _told(index: int, fault: Fault, missed: Sequence[int], history: Sequence[Event]) -> str:
    names = rank_set(missed)
    passed = _passed(history, missed[0], fault)
    if _is_armed(index, missed[0], history):
        path = fault.params.get("path", "")
        note = _note(history, index)
        more = f" ({note})" if note else ""
        return f"{fault!r} never fired on {names}: it used no file that matches {path!r}{more}"
    seen = f"rank {missed[0]} passed {passed}" if passed else f"rank {missed[0]} passed none such"
    return f"{fault!r} never fired on {names}: {seen}"


def _is_armed(index: int, rank: int, history: Iterable[Event]) -> bool:
    """Whether a rank has passed the point, and only what was to happen from there on did not."""
    return any(
        event.kind == "fault"
        and (event.rank, event.detail["index"], event.detail["phase"]) == (rank, index, "armed")
        for event in history
    )


def _passed(history: Iterable[Event], rank: int, fault: Fault) -> str:
    """Return which points of the kind that a fault waited for a rank has passed, with counts."""
    for event in history:
        if event.kind == "points" and event.rank == rank:
            same = [each for each in event.detail["passed"] if each[0] == fault.at.point]
            named = [f"{name or point} x{count}" for point, name, count in same[:_MAX_NAMED]]
            return ", ".join([*named, "..."] if len(same) > _MAX_NAMED else named)
    return ""


def demand_fired(finding: Finding, result: WorldResult) -> Finding:
    """Return `finding`, or that the test failed because a fault did not happen.

    What went wrong by itself stays what it is.
    """
    if finding.status != "passed":
        return finding
    missing = unfired(result)
    if not missing:
        return finding
    return replace(finding, outcome="failed", status="failed", reason="; ".join(missing))


def fault_lines(result: WorldResult) -> list[str]:
    """Return what to tell of a world's faults under its report."""
    lines = []
    for index, fault in enumerate(result.spec.faults):
        times = [
            f"rank {rank} at +{found[0] - result.started_s:.2f} s"
            for rank in fault.ranks
            if isinstance(rank, int) and (found := firings(result.history, index, rank))
        ]
        lines.append(f"{fault!r}: {', '.join(times) if times else 'never fired'}")
    return lines
