"""The points that ranks have passed, and the progress of the faults performed at them."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.event import (
    Event,
    Exited,
    FaultChanged,
    HoldEnded,
    PointSite,
    PointsPassed,
    PointsRecorded,
    ReleaseReason,
)
from pytest_multihost.core.model.fault import Fault, Point
from pytest_multihost.core.model.operation import rank_set
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.outcome.finding import Finding
from pytest_multihost.core.outcome.rank_facts import RankFacts

# The points that ranks have passed, from the events in which they have recorded them.


_STAR = re.compile(r"\*(?!\])")
_ESCAPED = re.compile(r"\[(.)\]")

PlaceOf = Callable[[Frame], Place]
"""Returns the place of a frame, as `SourceContext.place` does."""


def _bare_place(frame: Frame) -> Place:
    return Place(frame.file, frame.line, frame.function)


def recorded_points(
    history: Iterable[Event], place: PlaceOf = _bare_place
) -> Mapping[int, tuple[RecordedPoint, ...]]:
    """Return the points that each rank has recorded, in the order in which it passed them.

    Each has the `nth` with which `at` names this very passage. What stands for others stands
    alone: `all_gather_object`, not the collectives that it is made of, which only count.

    Args:
        history: The events of a world that was told to record points.
        place: Makes places of lines; by default without their texts.
    """
    return {rank: _points(rank, each, place) for rank, each in _records(history).items()}


def unrecorded_points(history: Iterable[Event]) -> Mapping[int, int]:
    """Return how many points ranks have passed that they did not record: there were too many."""
    found = Counter[int]()
    for event in history:
        if isinstance(event.body, PointsRecorded) and event.body.beyond:
            found[event.rank] += event.body.beyond
    return found


@dataclass(frozen=True, slots=True)
class _Record:
    """What a rank has sent: its sites, and the numbers of those passed."""

    sites: list[PointSite] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)


def _records(history: Iterable[Event]) -> Mapping[int, _Record]:
    """Return what each rank has sent, ranks ascending."""
    records: dict[int, _Record] = {}
    for event in history:
        if isinstance(event.body, PointsRecorded):
            record = records.setdefault(event.rank, _Record())
            record.sites.extend(event.body.sites)
            known = range(len(record.sites))
            record.passed.extend(each for each in event.body.passed if each in known)
    return dict(sorted(records.items()))


def _points(rank: int, record: _Record, place: PlaceOf) -> tuple[RecordedPoint, ...]:
    places = [place(each.frame) if each.frame else None for each in record.sites]
    counted = _counted_together(record.sites)
    passages = Counter[tuple[Point, str]]()
    found: list[RecordedPoint] = []
    span = 0
    for number in record.passed:
        site = record.sites[number]
        passages[site.point, site.other] += 1
        if site.is_inner:
            _meet_in_last_operation(found, site)
        else:
            nth = sum(passages[each] for each in counted[site.point])
            found.append(_point(site, rank, nth, span, places[number]))
            span += site.point.point == "collective"
    return tuple(found)


def _point(site: PointSite, rank: int, nth: int, span: int, where: Place | None) -> RecordedPoint:
    return RecordedPoint(
        rank,
        replace(site.point, nth=nth),
        span,
        is_main=site.is_main,
        where=where,
        other=site.other,
        makes=site.makes,
        meets_all=site.meets_all,
        error_path=site.error_path,
    )


def _meet_in_last_operation(found: list[RecordedPoint], inner: PointSite) -> None:
    """Let an operation wait for all if one of those that it is made of does."""
    for index in range(len(found) - 1, -1, -1):
        each = found[index]
        if each.point.point == "collective" and each.is_main == inner.is_main:
            found[index] = replace(each, meets_all=each.meets_all or inner.meets_all)
            return


def _counted_together(sites: Iterable[PointSite]) -> dict[Point, list[tuple[Point, str]]]:
    """Return for each point what `at` counts with it: a glob matches other files, too.

    What is counted is a point with the other path of a rename.
    """
    passed = {(each.point, each.other) for each in sites}
    found = {point: [each for each in passed if each[0] == point] for point, _ in passed}
    texts = {
        each: [_ESCAPED.sub(r"\1", name) for name in (each[0].name, each[1]) if name]
        for each in passed
        if each[0].point == "io"
    }
    for point in {point for point, _ in texts}:
        matches = re.compile(fnmatch.translate(point.name)).match
        tail = _ESCAPED.sub(r"\1", _STAR.split(point.name)[-1])
        found[point] = [
            other
            for other, names in texts.items()
            if other[0].call == point.call
            and any(name.endswith(tail) and matches(name) for name in names)
        ]
    return found


# The progress of a world's faults: which have happened, and which are still active.


_MAX_NAMED = 8
"""How many passed points are named for a fault that never fired."""


def firings(result: WorldResult, index: int) -> dict[int, list[float]]:
    """Return when a fault has happened, in monotonic seconds, by rank; only ranks it happened to.

    Args:
        result: The world.
        index: The fault's index in the world's list.
    """
    begun = [e for e, change in _changes(result.history, index) if change.phase == "begun"]
    ranks = [rank for rank in result.spec.faults[index].ranks if isinstance(rank, int)]
    times = {rank: [each.at_s for each in begun if each.rank == rank] for rank in ranks}
    return {rank: found for rank, found in times.items() if found}


@dataclass(frozen=True, slots=True)
class HeldFor:
    """A rank that was held and let go.

    Attributes:
        seconds: How long it was held.
        reason: Why it was let go.
    """

    seconds: float
    reason: ReleaseReason


def releases(result: WorldResult, index: int) -> dict[int, list[HeldFor]]:
    """Return how long a fault has held ranks, and why it let them go, by rank.

    Args:
        result: The world.
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
            why = f"rank {missed[0]} passed {passed or 'none such'}"
        found.append(f"{fault!r} never fired on {rank_set(missed)}: {why}")
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
    """Return `finding`; if the test passed but a required fault never fired, as failed.

    A test that did not pass keeps its own reason.
    """
    if finding.status == "passed" and (missing := unfired_faults(result)):
        return replace(finding, outcome="failed", status="failed", reason="; ".join(missing))
    return finding


# Active faults: while one of them will still act, no hang can be proven

LATE_S = 0.5
"""How much later than planned a fault may end on a busy machine."""


def active_fault_events(facts: Iterable[RankFacts]) -> list[Event]:
    """Return the "begun" events of the faults that are not over.

    A fault ends with its rank's process, except what a service has performed outside of it.
    """
    return [
        event
        for each in facts
        for event in each.active_faults
        if not each.is_gone or (isinstance(event.body, FaultChanged) and event.body.service)
    ]


def has_pending_actions(events: Iterable[Event], now: float) -> bool:
    """Return whether a fault will still act by itself.

    Args:
        events: The world's history so far, or only its active faults.
        now: Monotonic seconds.
    """
    ends_s = [begun.until_s for _, begun in _ongoing(events) if begun.until_s is not None]
    return any(until_s + LATE_S > now for until_s in ends_s)


def continued_by_plan(events: Iterable[Event]) -> frozenset[int]:
    """Return the ranks that faults stop now and continue later, once or repeatedly.

    Ranks that are frozen for good are not included: nothing will continue them.
    """
    return frozenset(
        rank
        for rank, begun in _ongoing(events)
        if begun.pause is not None and (begun.pause.until_s is not None or begun.pause.running_s)
    )


def frozen_for_good(faults: Sequence[Fault], events: Iterable[Event]) -> dict[int, Fault]:
    """Return the ranks that a fault stops and nothing continues, with the fault of each.

    A frozen rank that the harness has ended is included: it was frozen until then.
    """
    until_ended = (
        each for each in events if not (isinstance(each.body, Exited) and each.body.by_harness)
    )
    return {
        rank: faults[begun.index]
        for rank, begun in _ongoing(until_ended)
        if faults[begun.index].kind == "freeze" and begun.until_s is None
    }


def _ongoing(events: Iterable[Event]) -> list[tuple[int, FaultChanged]]:
    """Return the last "begun" change of each active fault, with its rank.

    A fault of a rank is over with its next change, or when the rank's process ends.
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
