"""`trace.json`: what each rank did and when, in the Trace Event format that Perfetto opens.

One process stands for the world and one thread for each rank. What a rank did beside its other
work gets a track of its own below the rank's. All times are whole microseconds from the world's
start: readers drop slices that stick out of those around them, if only by a rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_multihost.model.diagnosis import Diagnosis, OperationName, WaitsFor
from pytest_multihost.model.event import Event
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.report.intervals import Slice, Told, lasted

SCHEMA = "pytest-multihost-hangs/trace/1"

Json = dict[str, Any]

_WORLD = 1
"""The process id that stands for the world; 0 is the idle task to many readers."""

_TRACKS = 1000
"""Tracks that a rank may have: for each thread that waited beside the others, one."""


def trace_of(result: WorldResult, diagnosis: Diagnosis | None, *, root: str) -> Json:
    """Return the trace of a world as a JSON object.

    Args:
        result: What was observed.
        diagnosis: Who waits for whom, where that was to be told.
        root: pytest's rootdir; files below it are named relative to it.
    """
    told = Told(result, diagnosis, root)
    slices = lasted(told)
    arrows = _arrows(diagnosis.waits_for if diagnosis is not None else (), slices)
    awaited = _awaited(arrows, slices)
    tracks = {
        rank: _tracks([*mine, awaited[rank]] if rank in awaited else mine)
        for rank, mine in slices.items()
    }
    return {
        "traceEvents": [
            *_names(told, tracks),
            *(event for rank, lanes in tracks.items() for event in _complete(rank, lanes)),
            *_instants(told),
            *_flows(arrows, awaited, tracks),
        ],
        "displayTimeUnit": "ms",
        "otherData": _about(told),
    }


def write_trace(
    directory: Path, result: WorldResult, diagnosis: Diagnosis | None, *, root: str
) -> None:
    """Write an attempt's trace into its folder."""
    trace = trace_of(result, diagnosis, root=root)
    text = json.dumps(trace, allow_nan=False, separators=(",", ":"), default=repr)
    (directory / "trace.json").write_text(text + "\n", encoding="utf-8")


def _about(told: Told) -> Json:
    spec, diagnosis = told.result.spec, told.diagnosis
    return {
        "schema": SCHEMA,
        "nodeid": spec.nodeid,
        "attempt": spec.attempt,
        "world_size": spec.size,
        "backend": spec.backend,
        "started_at": told.result.started_at,
        "kind": diagnosis.kind if diagnosis else None,
        "summary": diagnosis.summary if diagnosis else told.result.reason,
    }


# Tracks


def _tracks(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Spread slices over tracks so that on each of them they lie side by side or within another."""
    tracks: list[list[Slice]] = [[]]
    around: list[list[int]] = [[]]  # of each track, the ends of the slices that are still open
    for each in sorted(slices, key=lambda one: (one.start_us, -one.end_us)):
        at = next((i for i, ends in enumerate(around) if _fits(each, ends)), len(tracks))
        if at == len(tracks):
            tracks.append([])
            around.append([])
        tracks[at].append(each)
        around[at].append(each.end_us)
    return tracks


def _fits(one: Slice, ends: list[int]) -> bool:
    """Whether a slice lies within the innermost that is open on a track; those past are closed."""
    while ends and ends[-1] <= one.start_us:
        ends.pop()
    return not ends or one.end_us <= ends[-1]


def _track(rank: int, lane: int) -> Json:
    return {"pid": _WORLD, "tid": (rank + 1) * _TRACKS + min(lane, _TRACKS - 1)}


def _names(told: Told, tracks: Mapping[int, Sequence[object]]) -> Iterator[Json]:
    spec = told.result.spec
    world = f"{spec.nodeid} ({spec.size} ranks, {spec.backend})"
    yield {"ph": "M", "name": "process_name", "pid": _WORLD, "args": {"name": world}}
    for rank, lanes in tracks.items():
        for lane in range(len(lanes)):
            at, name = _track(rank, lane), f"rank {rank}" + (" beside" if lane else "")
            order = {"sort_index": at["tid"]}
            yield {"ph": "M", "name": "thread_name", **at, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", **at, "args": order}


def _complete(rank: int, lanes: Sequence[Sequence[Slice]]) -> Iterator[Json]:
    for lane, slices in enumerate(lanes):
        for each in slices:
            yield {
                "ph": "X",
                "name": each.name,
                "cat": each.category,
                **_track(rank, lane),
                "ts": each.start_us,
                "dur": each.end_us - each.start_us,
                "args": dict(each.args),
            }


# Moments


def _instants(told: Told) -> Iterator[Json]:
    for event in told.result.history:
        if (words := _moment(event, told)) is not None:
            name, category = words
            yield _instant(name, category, told.us(event.at_s), _track(event.rank, 0))

    if told.diagnosis is not None:
        world = {"pid": _WORLD, "tid": _WORLD}
        judged = _instant(told.diagnosis.summary, "verdict", told.judged_us, world)
        yield {**judged, "s": "g"}


def _moment(event: Event, told: Told) -> tuple[str, str] | None:
    """Return name and category of an event that is worth a mark, else None."""
    detail = event.detail
    if event.kind == "fault" and 0 <= detail["index"] < len(told.result.spec.faults):
        fault = told.result.spec.faults[detail["index"]]
        return f"{fault!r}: {detail['phase']}", "fault"
    if event.kind == "sync_point":
        return f"sync_point {detail.get('name', '')}".rstrip(), "point"
    if event.kind == "report" and detail["outcome"] == "failed":
        return f"{detail['when']} failed", "failure"
    marks = {"ready": "ready", "parked": "test body is over", "interrupted": "interrupted"}
    return (marks[event.kind], "mark") if event.kind in marks else None


def _instant(name: str, category: str, at_us: int, track: Json) -> Json:
    return {"ph": "i", "s": "t", "name": name, "cat": category, **track, "ts": at_us}


# Who waits for whom


@dataclass(frozen=True, slots=True)
class _Arrow:
    """A wait of one rank, in what it waits, and for whom."""

    rank: int
    waiting: Slice
    to: int


def _arrows(waits: Iterable[WaitsFor], slices: Mapping[int, Sequence[Slice]]) -> list[_Arrow]:
    return [
        _Arrow(wait.rank, waiting, rank)
        for wait in waits
        if (waiting := _waiting(wait, slices[wait.rank])) is not None
        for rank in wait.for_
        if slices[rank]
    ]


def _waiting(wait: WaitsFor, slices: Sequence[Slice]) -> Slice | None:
    """Return the operation that is waited in; where it is none, what lasted to the end."""
    named = [each for each in slices if each.operation and _name(each.operation) == wait.operation]
    return named[-1] if named else max(slices, key=lambda each: each.end_us, default=None)


def _name(operation: Operation) -> OperationName:
    return OperationName(operation.name, operation.sequence, operation.group)


def _awaited(arrows: Iterable[_Arrow], slices: Mapping[int, Sequence[Slice]]) -> dict[int, Slice]:
    """Return of each rank that others wait for since when they all do.

    Arrows end there: Perfetto has them lead from what began first to what began later, and most
    culprits do what they do before the others wait for it.
    """
    found: dict[int, list[_Arrow]] = {}
    for arrow in arrows:
        found.setdefault(arrow.to, []).append(arrow)
    return {rank: _awaited_by(arrows, slices[rank]) for rank, arrows in found.items()}


def _awaited_by(arrows: Sequence[_Arrow], slices: Sequence[Slice]) -> Slice:
    end_us = max(each.end_us for each in slices)
    around = [each.start_us for each in slices if each.end_us == end_us]
    since_us = max([*(each.waiting.start_us + 2 for each in arrows), *around])
    return Slice(
        name=f"{rank_set(each.rank for each in arrows)} waiting for it",
        category="awaited",
        start_us=min(since_us, end_us),
        end_us=end_us,
    )


def _flows(
    arrows: Sequence[_Arrow],
    awaited: Mapping[int, Slice],
    tracks: Mapping[int, Sequence[Sequence[Slice]]],
) -> Iterator[Json]:
    """Yield both ends of each arrow; each is tied to the slice that has begun last at its time."""
    for number, arrow in enumerate(arrows, 1):
        start, end = arrow.waiting, awaited[arrow.to]
        if start.start_us + 1 < min(start.end_us, end.end_us) and end.start_us < end.end_us:
            told = {"name": "waits for", "cat": "waits for", "id": number}
            at = _track_of(start, arrow.rank, tracks)
            yield {"ph": "s", **told, **at, "ts": start.start_us + 1}
            at = _track_of(end, arrow.to, tracks)
            yield {"ph": "f", "bp": "e", **told, **at, "ts": end.start_us}


def _track_of(one: Slice, rank: int, tracks: Mapping[int, Sequence[Sequence[Slice]]]) -> Json:
    lanes = enumerate(tracks[rank])
    return _track(rank, next(lane for lane, slices in lanes if any(one is each for each in slices)))
