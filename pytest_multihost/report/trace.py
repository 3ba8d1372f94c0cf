"""`trace.json`: what each rank did and when, in the Trace Event format that Perfetto opens.

One process of the format stands for the world and one thread for each rank. What a rank did beside
its other work gets a track of its own below the rank's. All times are whole microseconds from the
world's start: readers drop slices that stick out of those around them, if only by a rounding.

The format is described in "Trace Event Format" (Google, 2016) and at
https://perfetto.dev/docs/getting-started/other-formats. The fields of an event that are used here:

* ``ph``, its phase: ``M`` metadata, ``X`` a complete slice, ``i`` an instant, ``s`` and ``f`` the
  start and the finish of a flow, which readers draw as an arrow.
* ``pid`` and ``tid``: the process and the thread whose track it is on.
* ``ts`` and ``dur``: when it began and how long it took, in microseconds.
* ``cat``: categories to filter by; ``args``: whatever the reader is to see of it.
* ``s`` of an instant, its scope: ``t`` its thread, ``g`` global, a line across all tracks.
* ``id`` of a flow ties its ends together. ``bp: e`` binds its finish to the slice around it,
  instead of the next one to begin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.model.event import (
    Event,
    FaultChanged,
    Interrupted,
    Parked,
    Ready,
    ReportMade,
    SyncPointPassed,
)
from pytest_multihost.model.operation import Operation, rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.verdict import Diagnosis, OperationName, WaitsFor
from pytest_multihost.report.intervals import Interval, JudgedWorld, intervals_of

SCHEMA = "pytest-multihost-hangs/trace/1"

Json = dict[str, object]
Tracks = Mapping[int, Sequence[Sequence[Interval]]]
"""The tracks of each rank, and on each of them its intervals."""

_WORLD = 1
"""The process id that stands for the world; 0 is the idle task to many readers."""

_MAX_TRACKS = 1000
"""Tracks that a rank may have: one for each thread that waited beside the others."""


def trace_of(result: WorldResult, diagnosis: Diagnosis | None, *, root: str) -> Json:
    """Return the trace of a world as a JSON object.

    Args:
        result: What was observed.
        diagnosis: Who waits for whom, where that is known.
        root: pytest's rootdir; files below it are named relative to it.
    """
    world = JudgedWorld(result, diagnosis, root)
    intervals = intervals_of(world)
    flows = _flows(diagnosis.waits_for if diagnosis is not None else (), intervals)
    awaited = _awaited(flows, intervals)
    tracks = {
        rank: _tracks([*own, awaited[rank]] if rank in awaited else own)
        for rank, own in intervals.items()
    }
    return {
        "traceEvents": [
            *_metadata(world, tracks),
            *(event for rank, own in tracks.items() for event in _slices(rank, own)),
            *_instants(world),
            *_flow_events(flows, awaited, tracks),
        ],
        "displayTimeUnit": "ms",
        "otherData": _about(world),
    }


def write_trace(
    directory: Path, result: WorldResult, diagnosis: Diagnosis | None, *, root: str
) -> None:
    """Write an attempt's trace into its folder."""
    trace = trace_of(result, diagnosis, root=root)
    text = json.dumps(trace, allow_nan=False, separators=(",", ":"), default=repr)
    (directory / "trace.json").write_text(text + "\n", encoding="utf-8")


def _about(world: JudgedWorld) -> Json:
    spec, diagnosis = world.result.spec, world.diagnosis
    return {
        "schema": SCHEMA,
        "nodeid": spec.nodeid,
        "attempt": spec.attempt,
        "world_size": spec.size,
        "backend": spec.backend,
        "started_at": world.result.started_at,
        "kind": diagnosis.kind if diagnosis else None,
        "summary": diagnosis.summary if diagnosis else world.result.reason,
    }


# Tracks


def _tracks(intervals: Iterable[Interval]) -> list[list[Interval]]:
    """Spread intervals over tracks so that on each they lie side by side or within another."""
    tracks: list[list[Interval]] = [[]]
    open_until: list[list[int]] = [[]]  # of each track, the ends of the intervals still open
    for each in sorted(intervals, key=lambda one: (one.start_us, -one.end_us)):
        at = next((i for i, ends in enumerate(open_until) if _fits(each, ends)), len(tracks))
        if at == len(tracks):
            tracks.append([])
            open_until.append([])
        tracks[at].append(each)
        open_until[at].append(each.end_us)
    return tracks


def _fits(one: Interval, ends: list[int]) -> bool:
    """Whether an interval lies within the innermost that is open; those past are closed."""
    while ends and ends[-1] <= one.start_us:
        ends.pop()
    return not ends or one.end_us <= ends[-1]


def _thread_id(rank: int, track: int) -> int:
    return (rank + 1) * _MAX_TRACKS + min(track, _MAX_TRACKS - 1)


def _on(rank: int, track: int = 0) -> Json:
    """Return the fields that put an event on a track."""
    return {"pid": _WORLD, "tid": _thread_id(rank, track)}


def _metadata(world: JudgedWorld, tracks: Tracks) -> Iterator[Json]:
    spec = world.result.spec
    title = f"{spec.nodeid} ({spec.size} ranks, {spec.backend})"
    yield {"ph": "M", "name": "process_name", "pid": _WORLD, "args": {"name": title}}
    for rank, own in tracks.items():
        for track in range(len(own)):
            name = f"rank {rank}" + (" beside" if track else "")
            order = {"sort_index": _thread_id(rank, track)}
            yield {"ph": "M", "name": "thread_name", **_on(rank, track), "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", **_on(rank, track), "args": order}


def _slices(rank: int, tracks: Sequence[Sequence[Interval]]) -> Iterator[Json]:
    for track, intervals in enumerate(tracks):
        for each in intervals:
            yield {
                "ph": "X",
                "name": each.name,
                "cat": each.category,
                **_on(rank, track),
                "ts": each.start_us,
                "dur": each.end_us - each.start_us,
                "args": dict(each.args),
            }


# Instants


def _instants(world: JudgedWorld) -> Iterator[Json]:
    for event in world.result.history:
        if (found := _instant_of(event, world)) is not None:
            name, category = found
            yield _instant(name, category, world.us(event.at_s), _on(event.rank), scope="t")
    if world.diagnosis is not None:
        on_world: Json = {"pid": _WORLD, "tid": _WORLD}
        yield _instant(world.diagnosis.summary, "verdict", world.judged_us, on_world, scope="g")


def _instant_of(event: Event, world: JudgedWorld) -> tuple[str, str] | None:
    """Return name and category of an event that is worth an instant, else None."""
    faults = world.result.spec.faults
    match event.body:
        case FaultChanged(index=index, phase=phase) if 0 <= index < len(faults):
            return f"{faults[index]!r}: {phase}", "fault"
        case SyncPointPassed(name):
            return f"sync_point {name}".rstrip(), "point"
        case ReportMade(when=when, outcome="failed"):
            return f"{when} failed", "failure"
        case Ready():
            return "ready", "mark"
        case Parked():
            return "test body is over", "mark"
        case Interrupted():
            return "interrupted", "mark"
    return None


def _instant(name: str, category: str, at_us: int, track: Json, *, scope: str) -> Json:
    return {"ph": "i", "s": scope, "name": name, "cat": category, **track, "ts": at_us}


# Who waits for whom, as flows


@dataclass(frozen=True, slots=True)
class _Flow:
    """A wait: of which rank, in what, for whom."""

    rank: int
    waiting: Interval
    to: int


def _flows(waits: Iterable[WaitsFor], intervals: Mapping[int, Sequence[Interval]]) -> list[_Flow]:
    return [
        _Flow(wait.rank, waiting, rank)
        for wait in waits
        if (waiting := _waiting(wait, intervals[wait.rank])) is not None
        for rank in wait.for_
        if intervals[rank]
    ]


def _waiting(wait: WaitsFor, intervals: Sequence[Interval]) -> Interval | None:
    """Return the operation of a wait; of one without, the interval that ended last."""
    named = [
        each for each in intervals if each.operation and _name(each.operation) == wait.operation
    ]
    return named[-1] if named else max(intervals, key=lambda each: each.end_us, default=None)


def _name(operation: Operation) -> OperationName:
    return OperationName(operation.name, operation.sequence, operation.group)


def _awaited(
    flows: Iterable[_Flow], intervals: Mapping[int, Sequence[Interval]]
) -> dict[int, Interval]:
    """Return for each rank that others wait for the interval in which they all do.

    Flows end there: Perfetto has them lead from what began first to what began later, and most
    culprits began what they do before the others waited for it.
    """
    found: dict[int, list[_Flow]] = {}
    for flow in flows:
        found.setdefault(flow.to, []).append(flow)
    return {rank: _awaited_by(flows, intervals[rank]) for rank, flows in found.items()}


def _awaited_by(flows: Sequence[_Flow], intervals: Sequence[Interval]) -> Interval:
    end_us = max(each.end_us for each in intervals)
    around = [each.start_us for each in intervals if each.end_us == end_us]
    since_us = max([*(each.waiting.start_us + 2 for each in flows), *around])
    return Interval(
        name=f"{rank_set(each.rank for each in flows)} waiting for it",
        category="awaited",
        start_us=min(since_us, end_us),
        end_us=end_us,
    )


def _flow_events(
    flows: Sequence[_Flow], awaited: Mapping[int, Interval], tracks: Tracks
) -> Iterator[Json]:
    """Yield both ends of each flow; each binds to the slice that has begun last at its time."""
    for number, flow in enumerate(flows, 1):
        start, end = flow.waiting, awaited[flow.to]
        if start.start_us + 1 < min(start.end_us, end.end_us) and end.start_us < end.end_us:
            common = {"name": "waits for", "cat": "waits for", "id": number}
            begins_on, ends_on = (
                _track_of(start, flow.rank, tracks),
                _track_of(end, flow.to, tracks),
            )
            yield {"ph": "s", **common, **begins_on, "ts": start.start_us + 1}
            yield {"ph": "f", "bp": "e", **common, **ends_on, "ts": end.start_us}


def _track_of(interval: Interval, rank: int, tracks: Tracks) -> Json:
    numbered = enumerate(tracks[rank])
    return _on(rank, next(n for n, own in numbered if any(interval is each for each in own)))
