"""`trace.json`: what each rank did and when, in the Trace Event format that Perfetto opens.

One process stands for the world and one thread for each rank. What a rank did beside its other
work gets a track of its own below the rank's. All times are whole microseconds from the world's
start: readers drop slices that stick out of those around them, if only by a rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_multihost.analysis.facts import RankFacts, describe_exit, fold
from pytest_multihost.analysis.frames import relative_to
from pytest_multihost.analysis.ranks import rank_set
from pytest_multihost.analysis.summary import operation_words
from pytest_multihost.model.diagnosis import Diagnosis, OperationName, WaitsFor
from pytest_multihost.model.event import Event
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.result import WorldResult

SCHEMA = "pytest-multihost-hangs/trace/1"

Json = dict[str, Any]

_WORLD = 1
"""The process id that stands for the world; 0 is the idle task to many readers."""

_TRACKS = 1000
"""Tracks that a rank may have: for each thread that waited beside the others, one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """Something of a rank that lasted, in microseconds from the world's start."""

    name: str
    category: str
    start_us: int
    end_us: int
    args: Mapping[str, Any] = field(default_factory=dict)
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """What all parts of a trace are made from."""

    result: WorldResult
    diagnosis: Diagnosis | None
    root: str

    def us(self, at_s: float) -> int:
        """Return a moment of the monotonic clock as the trace has it."""
        return max(0, round((at_s - self.result.started_s) * 1e6))

    @property
    def end_us(self) -> int:
        """When nothing was left of the world."""
        return self.us(self.result.ended_s)

    @property
    def judged_us(self) -> int:
        """When the hang was judged, or the world over by itself."""
        return self.us(self.result.detected_s or self.result.ended_s)


def trace_of(result: WorldResult, diagnosis: Diagnosis | None, *, root: str) -> Json:
    """Return the trace of a world as a JSON object.

    Args:
        result: What was observed.
        diagnosis: Who waits for whom, where that was to be told.
        root: pytest's rootdir; files below it are named relative to it.
    """
    told = _Told(result, diagnosis, root)
    tracks = {
        facts.rank: _tracks(_slices(facts, told))
        for facts in fold(result.history, result.spec.size)
    }
    return {
        "traceEvents": [
            *_names(told, tracks),
            *(event for rank, lanes in tracks.items() for event in _complete(rank, lanes)),
            *_instants(told),
            *_arrows(told, tracks),
        ],
        "displayTimeUnit": "ms",
        "otherData": _about(told),
    }


def write_trace(directory: Path, trace: Mapping[str, Any]) -> None:
    """Write an attempt's trace into its folder."""
    text = json.dumps(trace, allow_nan=False, separators=(",", ":"), default=repr)
    (directory / "trace.json").write_text(text + "\n", encoding="utf-8")


def _about(told: _Told) -> Json:
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


# What lasted


def _slices(facts: RankFacts, told: _Told) -> list[_Slice]:
    """Return what lasted of one rank: its phases, its operations, and how it was left."""
    operations = [
        _operation_slice(each, facts, told) for each in _operations(facts.rank, told.result)
    ]
    found = [*_phases(facts, told), *operations]
    last = _last(facts, found, told)
    return found if last is None else [*found, last]


def _over_us(facts: RankFacts, told: _Told) -> int:
    """When a rank could do no more."""
    return told.end_us if facts.exited_s is None else told.us(facts.exited_s)


def _phases(facts: RankFacts, told: _Told) -> Iterator[_Slice]:
    begun = sorted(_phase_starts(facts.rank, told))
    ends = [*(start_us for start_us, _ in begun[1:]), _over_us(facts, told)]
    for (start_us, name), end_us in zip(begun, ends, strict=False):
        # The news of a death can overtake what the rank told.
        yield _Slice(name=name, category="phase", start_us=start_us, end_us=max(start_us, end_us))


def _phase_starts(rank: int, told: _Told) -> Iterator[tuple[int, str]]:
    mine = [event for event in told.result.history if event.rank == rank]
    first = [told.us(event.at_s) for event in mine if event.kind in ("forked", "hello")]
    if first:
        yield min(first), "startup"
    for event in mine:
        if event.kind == "phase" and event.detail["phase"] != "shutdown":
            yield told.us(event.at_s), event.detail["phase"]
        elif event.kind == "done":
            yield told.us(event.at_s), "shutdown"


def _operations(rank: int, result: WorldResult) -> list[Operation]:
    """Return what is known of a rank's operations, also those that only stacks tell of."""
    recent = [each for page in result.operations if page.rank == rank for each in page.recent]
    last = result.sightings[-1].ranks if result.sightings else ()
    seen = [each for one in last if one.rank == rank for each in one.operations]
    return recent + [each for each in seen if not any(_is_same(each, old) for old in recent)]


def _is_same(one: Operation, other: Operation) -> bool:
    """Whether two looks at a rank saw one operation; it may have ended between them."""
    return (one.name, one.since_s, one.group_key) == (other.name, other.since_s, other.group_key)


def _operation_slice(operation: Operation, facts: RankFacts, told: _Told) -> _Slice:
    start_us = told.us(operation.since_s)
    is_open = operation.ended_s is None
    end_us = _over_us(facts, told) if operation.ended_s is None else told.us(operation.ended_s)
    return _Slice(
        name=operation_words(operation, told.result),
        category="open operation" if is_open else "operation",
        start_us=start_us,
        end_us=max(start_us, end_us),
        args=_operation_args(operation, told),
        operation=operation,
    )


def _operation_args(operation: Operation, told: _Told) -> Json:
    frame = operation.frame
    place = f"{relative_to(told.root, frame.file)}:{frame.line}" if frame else None
    found = {
        "kind": operation.kind,
        "group": rank_set(operation.group),
        "sequence": operation.sequence or None,
        "peer": operation.peer,
        "root": operation.root,
        "detail": operation.detail or None,
        "scope": operation.scope or None,
        "place": place,
        "function": frame.function if frame else None,
        "waits": operation.waited_s is not None,
        "ended": "never" if operation.is_open else "by an exception" if operation.failed else None,
        "source": operation.source,
    }
    return {name: value for name, value in found.items() if value is not None}


def _last(facts: RankFacts, found: Sequence[_Slice], told: _Told) -> _Slice | None:
    """Return how a rank was left: it is gone, or others wait for it and it is in no operation."""
    if facts.exit is not None and _over_us(facts, told) < told.end_us and not facts.was_ended:
        return _left(describe_exit(facts.exit), _over_us(facts, told), told.end_us)
    diagnosis = told.diagnosis
    if diagnosis is None or facts.rank not in diagnosis.culprits:
        return None
    if any(each.category == "open operation" for each in found):
        return None
    over_us = _over_us(facts, told)
    ended = [each.end_us for each in found if each.operation is not None]
    begun = [each.start_us for each in found]
    since_us = min(over_us, max([*begun, *ended, _trouble_us(facts, told)], default=0))
    return _left(_verdict_words(facts.rank, diagnosis), since_us, over_us)


def _left(name: str, start_us: int, end_us: int) -> _Slice:
    return _Slice(name=name, category="culprit", start_us=start_us, end_us=max(start_us, end_us))


def _trouble_us(facts: RankFacts, told: _Told) -> int:
    """When a rank raised or had done its part; 0 if neither."""
    moments = [facts.failure.at_s] if facts.failure is not None else []
    if facts.parked_s is not None:
        moments.append(facts.parked_s)
    return max(map(told.us, moments), default=0)


def _verdict_words(rank: int, diagnosis: Diagnosis) -> str:
    where = diagnosis.where
    if where is None or where["rank"] != rank:
        return diagnosis.kind
    return f"{diagnosis.kind}: {where['file']}:{where['line']} {where['source']}".rstrip()


# Tracks


def _tracks(slices: Iterable[_Slice]) -> list[list[_Slice]]:
    """Spread slices over tracks so that on each of them they lie side by side or within another."""
    tracks: list[list[_Slice]] = [[]]
    around: list[list[int]] = [[]]  # of each track, the ends of the slices that are still open
    for each in sorted(slices, key=lambda one: (one.start_us, -one.end_us)):
        at = next((i for i, ends in enumerate(around) if _fits(each, ends)), len(tracks))
        if at == len(tracks):
            tracks.append([])
            around.append([])
        tracks[at].append(each)
        around[at].append(each.end_us)
    return tracks


def _fits(one: _Slice, ends: list[int]) -> bool:
    """Whether a slice lies within the innermost that is open on a track; those past are closed."""
    while ends and ends[-1] <= one.start_us:
        ends.pop()
    return not ends or one.end_us <= ends[-1]


def _track(rank: int, lane: int) -> Json:
    return {"pid": _WORLD, "tid": (rank + 1) * _TRACKS + min(lane, _TRACKS - 1)}


def _names(told: _Told, tracks: Mapping[int, Sequence[object]]) -> Iterator[Json]:
    spec = told.result.spec
    world = f"{spec.nodeid} ({spec.size} ranks, {spec.backend})"
    yield {"ph": "M", "name": "process_name", "pid": _WORLD, "args": {"name": world}}
    for rank, lanes in tracks.items():
        for lane in range(len(lanes)):
            at, name = _track(rank, lane), f"rank {rank}" + (" beside" if lane else "")
            order = {"sort_index": at["tid"]}
            yield {"ph": "M", "name": "thread_name", **at, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", **at, "args": order}


def _complete(rank: int, lanes: Sequence[Sequence[_Slice]]) -> Iterator[Json]:
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


def _instants(told: _Told) -> Iterator[Json]:
    for event in told.result.history:
        if (words := _moment(event, told)) is not None:
            name, category = words
            yield _instant(name, category, told.us(event.at_s), _track(event.rank, 0))
    for seen in told.result.sightings[-1:]:
        for each in seen.ranks:
            if each.label is not None:
                words_seen = f"{each.label} {each.doing}".rstrip()
                yield _instant(words_seen, "seen", told.us(seen.at_s), _track(each.rank, 0))
    if told.diagnosis is not None:
        world = {"pid": _WORLD, "tid": _WORLD}
        judged = _instant(told.diagnosis.summary, "verdict", told.judged_us, world)
        yield {**judged, "s": "g"}


def _moment(event: Event, told: _Told) -> tuple[str, str] | None:
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


def _arrows(told: _Told, tracks: Mapping[int, Sequence[Sequence[_Slice]]]) -> Iterator[Json]:
    """Yield an arrow from each wait to each rank that it waits for, there at the verdict."""
    waits = told.diagnosis.waits_for if told.diagnosis is not None else ()
    edges = [(wait, rank) for wait in waits for rank in wait.for_]
    for number, (wait, rank) in enumerate(edges, 1):
        start = _start_of(wait, told, tracks)
        end = _at_last(rank, told, tracks)
        if end["ts"] >= start["ts"]:
            arrow = {"name": "waits for", "cat": "waits for", "id": number}
            yield {"ph": "s", **arrow, **start}
            yield {"ph": "f", "bp": "e", **arrow, **end}


def _start_of(
    wait: WaitsFor, told: _Told, tracks: Mapping[int, Sequence[Sequence[_Slice]]]
) -> Json:
    """Return the beginning of a wait; of one that is no operation, where its rank was at last."""
    for lane, slices in enumerate(tracks[wait.rank]):
        for each in reversed(slices):
            if each.operation is not None and _name(each.operation) == wait.operation:
                return _within([each], each.start_us + 1) | _track(wait.rank, lane)
    return _at_last(wait.rank, told, tracks)


def _at_last(rank: int, told: _Told, tracks: Mapping[int, Sequence[Sequence[_Slice]]]) -> Json:
    """Return where a rank was when the world was judged."""
    last = sorted(tracks[rank][0], key=lambda each: each.end_us)[-1:]
    return _within(last, told.judged_us) | _track(rank, 0)


def _name(operation: Operation) -> OperationName:
    return OperationName(operation.name, operation.sequence, operation.group)


def _within(slices: Sequence[_Slice], at_us: int) -> Json:
    """Return a moment that lies within a slice: an arrow is tied to what is open at its end."""
    for each in slices:
        at_us = max(each.start_us, min(at_us, each.end_us - 1))
    return {"ts": at_us}
