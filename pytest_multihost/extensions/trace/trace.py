"""Writes `trace.json`: the activities of each rank over time, in the Trace Event format.

Perfetto opens this format. The world is one process of the format and each rank one thread.
Concurrent work of a rank gets its own track below the rank's. All times are whole microseconds from
the world's start, because readers drop slices that exceed the enclosing ones, even by rounding.

The format is described in "Trace Event Format" (Google, 2016) and at
https://perfetto.dev/docs/getting-started/other-formats. This module uses these fields of an event:

* ``ph``, its phase: ``M`` metadata, ``X`` a complete slice, ``i`` an instant, ``s`` and ``f`` the
  start and the finish of a flow, which readers draw as an arrow.
* ``pid`` and ``tid``: the process and the thread of its track.
* ``ts`` and ``dur``: its begin and its duration, in microseconds.
* ``cat``: categories to filter by; ``args``: details for the reader.
* ``s`` of an instant, its scope: ``t`` its thread, ``g`` global, a line across all tracks.
* ``id`` of a flow connects its ends. ``bp: e`` binds its finish to the enclosing slice instead of
  the next slice that begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pytest_multihost.core import files
from pytest_multihost.core.model.event import (
    Done,
    Event,
    FaultChanged,
    Forked,
    Hello,
    HoldEnded,
    Interrupted,
    Parked,
    PhaseEntered,
    Ready,
    ReportMade,
    SyncPointPassed,
)
from pytest_multihost.core.model.operation import Operation, group_by_value
from pytest_multihost.core.model.rank_names import rank_set
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import relative_to
from pytest_multihost.core.model.verdict import Diagnosis, OperationName, WaitsFor
from pytest_multihost.core.outcome import RankFacts, describe_exit, fold_history

SCHEMA = "pytest-multihost-hangs/trace/1"

Json = dict[str, object]

_WORLD = 1
"""The process id of the world in the trace; many readers take 0 for the idle task."""

_MAX_TRACKS = 1000
"""Maximum tracks of a rank: one for each thread that waited concurrently with the others."""

# Cached, because a world has few groups and files, and many operations.
_members = lru_cache(rank_set)
_relative = lru_cache(relative_to)


@dataclass(frozen=True, slots=True)
class _Interval:
    """A span of time, in microseconds from the world's start.

    Attributes:
        category: ``phase``, ``operation``, ``open operation``, ``culprit`` or ``awaited``.
        end_us: The end; for an open operation, the end of its rank.
        args: Details for the reader.
        operation: The operation, if the interval is one.
    """

    name: str
    category: str
    start_us: int
    end_us: int
    args: Json = field(default_factory=dict)
    operation: Operation | None = None


_Intervals = Mapping[int, Sequence[_Interval]]
"""The intervals of each rank."""

_Tracks = Mapping[int, Sequence[Sequence[_Interval]]]
"""For each rank its tracks, and for each track its intervals."""


@dataclass(frozen=True, slots=True)
class _World:
    """A world, its wait-for relation if known, and pytest's rootdir."""

    result: WorldResult
    diagnosis: Diagnosis | None
    root: str

    def us(self, at_s: float) -> int:
        """Convert a time of the monotonic clock to microseconds from the world's start."""
        return self.result.us(at_s)

    def gone_us(self, facts: RankFacts) -> int:
        """Return when a rank exited; if it did not, when its world ended."""
        return self.us(self.result.ended_s if facts.exited_s is None else facts.exited_s)

    def last_seen(self, rank: int) -> Json:
        """Return the last observed activity of a rank's main thread."""
        seen = self.result.last_seen.get(rank)
        if seen is None or not seen.label:
            return {}
        return {"seen": " ".join(filter(None, (seen.label, seen.details)))}


def write_trace(
    directory: Path, result: WorldResult, diagnosis: Diagnosis | None, *, root: str
) -> None:
    """Write an attempt's trace into its folder."""
    trace = trace_of(result, diagnosis, root=root)
    text = json.dumps(trace, allow_nan=False, separators=(",", ":"), default=repr)
    files.write(directory / "trace.json", text + "\n")


def trace_of(result: WorldResult, diagnosis: Diagnosis | None, *, root: str) -> Json:
    """Return the trace of a world as a JSON object.

    Args:
        diagnosis: Has the waits between ranks, if known.
        root: pytest's rootdir; files below it are named relative to it.
    """
    spec, world = result.spec, _World(result, diagnosis, root)
    intervals = {
        facts.rank: _intervals(facts, world) for facts in fold_history(result.history, spec.size)
    }
    flows = _flows(diagnosis.waits_for if diagnosis is not None else (), intervals)
    awaited = _awaited(flows, intervals)
    tracks = {
        rank: _tracks([*own, awaited[rank]] if rank in awaited else own)
        for rank, own in intervals.items()
    }
    title = f"{spec.nodeid} ({spec.size} ranks, {spec.backend})"
    return {
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": _WORLD, "args": {"name": title}},
            *_track_names(tracks),
            *_slices(tracks),
            *_instants(world),
            *_flow_events(flows, awaited, tracks),
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "schema": SCHEMA,
            "nodeid": spec.nodeid,
            "attempt": spec.attempt,
            "world_size": spec.size,
            "backend": spec.backend,
            "started_at": result.started_at,
            "kind": diagnosis.kind if diagnosis else None,
            "summary": diagnosis.summary if diagnosis else result.reason,
        },
    }


def _intervals(facts: RankFacts, world: _World) -> list[_Interval]:
    begun = sorted(_phase_starts(facts.rank, world))
    ends = [*(start_us for start_us, _ in begun[1:]), world.gone_us(facts)]
    found = [
        # The event of a death can arrive before the rank's last events.
        *(
            _Interval(name, "phase", start_us, max(start_us, end_us))
            for (start_us, name), end_us in zip(begun, ends, strict=False)
        ),
        *(
            _operation_interval(each, facts, world)
            for each in world.result.operations_of(facts.rank)
        ),
    ]
    return [*found, *_how_left(facts, found, world)]


def _phase_starts(rank: int, world: _World) -> Iterator[tuple[int, str]]:
    events = [event for event in world.result.history if event.rank == rank]
    first = [world.us(event.at_s) for event in events if isinstance(event.body, Forked | Hello)]
    if first:
        yield min(first), "startup"
    for event in events:
        match event.body:
            case PhaseEntered(phase) if phase != "shutdown":
                yield world.us(event.at_s), phase
            case Done():  # the rank exits only when released, later than its own "shutdown"
                yield world.us(event.at_s), "shutdown"


def _operation_interval(operation: Operation, facts: RankFacts, world: _World) -> _Interval:
    frame = operation.frame
    found = {
        "kind": operation.kind,
        "group": _members(operation.group),
        "sequence": operation.sequence or None,
        "peer": operation.peer,
        "root": operation.root,
        "detail": operation.detail or None,
        "scope": str(operation.scope) or None,
        "place": f"{_relative(world.root, frame.file)}:{frame.line}" if frame else None,
        "function": frame.function if frame else None,
        "waits": operation.waited_s is not None,
        "ended": "never" if operation.is_open else "by an exception" if operation.failed else None,
        "source": operation.source,
    }
    args: Json = {name: value for name, value in found.items() if value is not None}
    start_us = world.us(operation.since_s)
    if operation.ended_s is not None:
        category, end_us = "operation", world.us(operation.ended_s)
    else:
        category, end_us = "open operation", world.gone_us(facts)
        args |= world.last_seen(facts.rank)
    name = operation.describe(world.result.spec.size)
    return _Interval(name, category, start_us, max(start_us, end_us), args, operation)


def _how_left(facts: RankFacts, found: Sequence[_Interval], world: _World) -> Iterator[_Interval]:
    """Yield a rank's final state if it is gone, or a culprit that is in no operation."""
    gone_us, end_us = world.gone_us(facts), world.us(world.result.ended_s)
    diagnosis = world.diagnosis
    if facts.exit is not None and gone_us < end_us and not facts.was_ended:
        yield _Interval(describe_exit(facts.exit), "culprit", gone_us, end_us)
    elif diagnosis is not None and facts.rank in diagnosis.culprits:
        if any(each.category == "open operation" for each in found):
            return
        trouble = [world.us(at_s) for at_s in (facts.failed_s, facts.parked_s) if at_s]
        begun = [each.start_us for each in found]
        ended = [each.end_us for each in found if each.operation is not None]
        since_us = min(gone_us, max([*begun, *ended, *trouble], default=0))
        name, where = str(diagnosis.kind), diagnosis.where
        if where is not None and where.rank == facts.rank:
            name = f"{name}: {where.file}:{where.line} {where.source}".rstrip()
        yield _Interval(name, "culprit", since_us, gone_us, world.last_seen(facts.rank))


# Tracks


def _tracks(intervals: Iterable[_Interval]) -> list[list[_Interval]]:
    """Distribute intervals over tracks so that those on one track are disjoint or nested."""
    tracks: list[list[_Interval]] = []
    open_until: list[list[int]] = []  # of each track, the ends of the intervals still open
    for each in sorted(intervals, key=lambda one: (one.start_us, -one.end_us)):
        for track, ends in zip(tracks, open_until, strict=True):
            while ends and ends[-1] <= each.start_us:
                ends.pop()
            if not ends or each.end_us <= ends[-1]:
                track.append(each)
                ends.append(each.end_us)
                break
        else:
            tracks.append([each])
            open_until.append([each.end_us])
    return tracks or [[]]


def _on(rank: int, track: int = 0) -> Json:
    """Return the fields that put an event on a track."""
    return {"pid": _WORLD, "tid": (rank + 1) * _MAX_TRACKS + min(track, _MAX_TRACKS - 1)}


def _track_names(tracks: _Tracks) -> Iterator[Json]:
    for rank, own in tracks.items():
        for track in range(len(own)):
            on = _on(rank, track)
            name = {"name": f"rank {rank}" + (" beside" if track else "")}
            yield {"ph": "M", "name": "thread_name", **on, "args": name}
            order = {"sort_index": on["tid"]}
            yield {"ph": "M", "name": "thread_sort_index", **on, "args": order}


def _slices(tracks: _Tracks) -> Iterator[Json]:
    for rank, own in tracks.items():
        for track, intervals in enumerate(own):
            for each in intervals:
                yield {
                    "ph": "X",
                    "name": each.name,
                    "cat": each.category,
                    **_on(rank, track),
                    "ts": each.start_us,
                    "dur": each.end_us - each.start_us,
                    "args": each.args,
                }


# Instants


def _instants(world: _World) -> Iterator[Json]:
    result, diagnosis = world.result, world.diagnosis
    for event in result.history:
        if (found := _instant_of(event, result.spec)) is not None:
            name, category = found
            at_us, on = world.us(event.at_s), _on(event.rank)
            yield {"ph": "i", "s": "t", "name": name, "cat": category, **on, "ts": at_us}
    if diagnosis is not None:
        at_us = world.us(result.detected_s or result.ended_s)
        on = {"pid": _WORLD, "tid": _WORLD}
        name = diagnosis.summary
        yield {"ph": "i", "s": "g", "name": name, "cat": "verdict", **on, "ts": at_us}


def _instant_of(event: Event, spec: WorldSpec) -> tuple[str, str] | None:
    """Return name and category of an event that is shown as an instant, else None."""
    faults = spec.faults
    match event.body:
        case FaultChanged(index=index, phase=phase) if 0 <= index < len(faults):
            return f"{faults[index]!r}: {phase}", "fault"
        case HoldEnded(index, reason) if 0 <= index < len(faults):
            return f"{faults[index]!r}: {reason}", "fault"
        case SyncPointPassed(name):
            return f"sync_point {name}".rstrip(), "point"
        case ReportMade(when=when, outcome="failed"):
            return f"{when} failed", "failure"
        case Ready():
            return "ready", "mark"
        case Parked():
            what = "test body" if spec.subject == "test" else spec.subject
            return f"{what} is over", "mark"
        case Interrupted():
            return "interrupted", "mark"
    return None


# Waits between ranks, as flows


class _Flow(NamedTuple):
    """A wait: the waiting rank, its interval, the awaited rank."""

    rank: int
    waiting: _Interval
    to: int


def _flows(waits: Iterable[WaitsFor], intervals: _Intervals) -> list[_Flow]:
    """Return a flow for each wait of a rank for another one.

    It begins at the interval of the wait's operation, else at the waiting rank's last interval.
    """
    flows = []
    for wait in waits:
        own = intervals[wait.rank]
        named = [
            each
            for each in own
            if (operation := each.operation) is not None
            and OperationName(operation.name, operation.sequence, operation.group) == wait.operation
        ]
        waiting = named[-1] if named else max(own, key=lambda each: each.end_us, default=None)
        if waiting is not None:
            flows += [_Flow(wait.rank, waiting, rank) for rank in wait.for_ if intervals[rank]]
    return flows


def _awaited(flows: Iterable[_Flow], intervals: _Intervals) -> dict[int, _Interval]:
    """Return for each awaited rank the interval in which all its waiters wait for it.

    Flows end there. Perfetto draws a flow from the slice that began first to the later one, and
    most culprits began their slice before the others waited for them.
    """
    awaited = {}
    for rank, waits in group_by_value((flow.to, flow) for flow in flows).items():
        end_us = max(each.end_us for each in intervals[rank])
        around = [each.start_us for each in intervals[rank] if each.end_us == end_us]
        since_us = max([*(each.waiting.start_us + 2 for each in waits), *around])
        name = f"{rank_set(each.rank for each in waits)} waiting for it"
        awaited[rank] = _Interval(name, "awaited", min(since_us, end_us), end_us)
    return awaited


def _flow_events(
    flows: Sequence[_Flow], awaited: Mapping[int, _Interval], tracks: _Tracks
) -> Iterator[Json]:
    """Yield both ends of each flow; each binds to the slice that began last before its time."""
    for number, flow in enumerate(flows, 1):
        start, end = flow.waiting, awaited[flow.to]
        if start.start_us + 1 < min(start.end_us, end.end_us) and end.start_us < end.end_us:
            common = {"name": "waits for", "cat": "waits for", "id": number}
            begins_on = _track_of(start, flow.rank, tracks)
            ends_on = _track_of(end, flow.to, tracks)
            yield {"ph": "s", **common, **begins_on, "ts": start.start_us + 1}
            yield {"ph": "f", "bp": "e", **common, **ends_on, "ts": end.start_us}


def _track_of(interval: _Interval, rank: int, tracks: _Tracks) -> Json:
    return _on(rank, next(n for n, own in enumerate(tracks[rank]) if interval in own))
