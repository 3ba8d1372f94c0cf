"""What is drawn on the lanes of a world's ranks, as data for the script that draws it.

Times are whole microseconds from the world's start; what repeats stands in tables and is referred
to by its place there, so that ten thousand operations are a few hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from pytest_multihost.model.diagnosis import Diagnosis
from pytest_multihost.model.event import Event
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.user_code import short_path
from pytest_multihost.outcome.judge import Finding, RankFinding
from pytest_multihost.outcome.rank_facts import describe_exit
from pytest_multihost.report.html.axis import stretches
from pytest_multihost.report.html.markup import plain

MAX_OPERATIONS = 20_000
"""Operations that are drawn, of all ranks together; of more, the last ones of each rank."""

_MAX_WORDS = 120
"""Characters of what is said of a moment; the page has the rest elsewhere."""

OPEN = -1
"""Stands for the length of an operation that has not ended, and the wait of one not waited for."""


@dataclass(slots=True)
class _Table:
    """Values in the order in which they were first met."""

    places: dict[Any, int] = field(default_factory=dict)

    def place(self, value: Any) -> int:  # noqa: ANN401 - any hashable
        """Return where a value stands."""
        return self.places.setdefault(value, len(self.places))


@dataclass(frozen=True, slots=True)
class _Clock:
    """Counts microseconds from the world's start."""

    started_s: float

    def us(self, at_s: float) -> int:
        """Return a moment of the monotonic clock as microseconds."""
        return round((at_s - self.started_s) * 1e6)


def timeline(
    result: WorldResult,
    finding: Finding,
    diagnosis: Diagnosis | None,
    *,
    root: str,
    words: Mapping[int, tuple[str, str]],
) -> dict[str, Any]:
    """Return everything that the lanes show.

    Args:
        result: What was observed.
        finding: What was found.
        diagnosis: Why it hung or broke, where that is known.
        root: pytest's rootdir.
        words: The state of each rank, and what it does there.
    """
    clock = _Clock(result.started_s)
    end_us = clock.us(result.detected_s or result.ended_s)
    by_rank = {rank: _operations(result, rank) for rank in range(result.spec.size)}
    kept = max(1, MAX_OPERATIONS // result.spec.size)
    kinds, places, details = _Table(), _Table(), _Table()
    operations = [
        list(chain.from_iterable(_numbers(by_rank[rank][-kept:], clock, (kinds, places, details))))
        for rank in by_rank
    ]
    marks = sorted(_marks(result, finding, clock))
    faults = list(_faults(result, clock))
    moments = chain(
        _begins_and_ends(by_rank.values(), result.started_s),
        (mark[0] / 1e6 for mark in marks),
        (at / 1e6 for fault in faults for at in fault[1:3] if at != OPEN),
    )
    return {
        "end": end_us,
        "axis": [
            [round(s.begin_s * 1e6), round(s.end_s * 1e6), s.left, s.right, int(s.is_silence)]
            for s in stretches(moments, end_s=end_us / 1e6)
        ],
        "go": _go(result, clock),
        "progress": clock.us(result.progress_s) if result.progress_s else None,
        "told": clock.us(result.detected_s) if result.detected_s else None,
        "ranks": [_lane(each, diagnosis, end_us, clock, words) for each in finding.ranks],
        "kinds": [_kind(each, result) for each in kinds.places],
        "places": [_place(each, root) for each in places.places],
        "details": [plain(each) for each in details.places],
        "operations": operations,
        "marks": marks,
        "faults": faults,
        "waits": _waits(diagnosis),
        "chosen": _chosen(diagnosis),
        "left_out": sum(max(0, len(each) - kept) for each in by_rank.values()),
    }


# Operations


def _operations(result: WorldResult, rank: int) -> list[Operation]:
    """Return what is known of a rank's operations, in the order in which they began."""
    noted = [each for page in result.operations if page.rank == rank for each in page.recent]
    last = result.snapshots[-1].ranks if result.snapshots else ()
    seen = [each for sight in last if sight.rank == rank for each in sight.operations]
    more = [each for each in seen if each.source != "recorder" and each.scope != "harness"]
    return sorted([*noted, *more], key=lambda each: each.since_s)


def _begins_and_ends(
    operations: Iterable[Sequence[Operation]], started_s: float
) -> Iterator[float]:
    for each in chain.from_iterable(operations):
        yield each.since_s - started_s
        if each.ended_s is not None:
            yield each.ended_s - started_s


def _numbers(
    operations: Iterable[Operation], clock: _Clock, tables: tuple[_Table, _Table, _Table]
) -> Iterator[tuple[int, ...]]:
    """Yield each operation as the eight numbers that `operationsOf` in lanes.js reads."""
    kinds, places, details = tables
    for each in operations:
        kind = (
            each.name,
            each.kind,
            each.group,
            each.ordinal,
            each.scope,
            each.peer,
            each.root,
            each.source,
        )
        begin = clock.us(each.since_s)
        yield (
            kinds.place(kind),
            each.sequence,
            begin,
            OPEN if each.ended_s is None else clock.us(each.ended_s) - begin,
            OPEN if each.waited_s is None else clock.us(each.waited_s) - begin,
            places.place(each.frame),
            details.place(each.detail),
            int(each.failed),
        )


def _kind(key: tuple[Any, ...], result: WorldResult) -> dict[str, Any]:
    name, kind, group, ordinal, scope, peer, root, source = key
    sample = Operation(
        name=name, kind=kind, group=group, sequence=0, since_s=0.0, ordinal=ordinal, scope=scope
    )
    words = sample.describe(result.spec.size)
    return {
        "name": plain(name),
        "kind": kind,
        "group": list(group),
        "meets": f"{group}/{ordinal}/{scope}",
        "of": plain(words[len(name) :].strip()) if words.startswith(name) else "",
        "peer": peer,
        "root": root,
        "source": source,
    }


def _place(frame: Any, root: str) -> str:  # noqa: ANN401 - a frame or None
    return plain(f"{short_path(root, frame.file)}:{frame.line}") if frame is not None else ""


# Ranks, and what happened to them


def _lane(
    finding: RankFinding,
    diagnosis: Diagnosis | None,
    end_us: int,
    clock: _Clock,
    words: Mapping[int, tuple[str, str]],
) -> dict[str, Any]:
    facts = finding.facts
    state, told = words.get(facts.rank, ("", ""))
    ended = [at for at in (facts.parked_s, facts.exited_s) if at is not None]
    return {
        "rank": facts.rank,
        "role": role(facts.rank, diagnosis),
        "state": plain(state),
        "words": plain(_cut(told)),
        "ready": clock.us(facts.ready_s) if facts.ready_s is not None else None,
        "end": min([end_us, *(clock.us(at) for at in ended)]),
    }


def role(rank: int, diagnosis: Diagnosis | None) -> str:
    """Return what a rank is in a diagnosis: ``culprit``, ``waiting`` or nothing."""
    if diagnosis is None:
        return ""
    if rank in diagnosis.culprits or rank in diagnosis.cycle:
        return "culprit"
    return "waiting" if rank in diagnosis.waiting else ""


def _go(result: WorldResult, clock: _Clock) -> int | None:
    for event in result.history:
        if event.kind == "released" and event.detail["gate"] == "go":
            return clock.us(event.at_s)
    return None


def _marks(result: WorldResult, finding: Finding, clock: _Clock) -> Iterator[list[Any]]:
    """Yield moments of ranks: when, whose, of what sort, in words."""
    for event in result.history:
        if (mark := _mark(event)) is not None:
            yield [clock.us(event.at_s), event.rank, *mark]
    for each in finding.ranks:
        facts = each.facts
        if each.at_s is not None and not facts.has_died:
            yield [clock.us(each.at_s), facts.rank, "raised", plain(_cut(each.summary))]
        if facts.exit is not None and facts.exited_s is not None and not facts.was_ended:
            words = describe_exit(facts.exit)
            yield [clock.us(facts.exited_s), facts.rank, _way_out(each), words]


def _way_out(finding: RankFinding) -> str:
    if finding.outcome == "killed_as_planned":
        return "killed"
    return "died" if finding.facts.has_died else "left"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]}…"


def _mark(event: Event) -> tuple[str, str] | None:
    if event.kind == "sync_point":
        return "point", plain(f"sync point {event.detail.get('name', '')}")
    if event.kind == "parked":
        return "returned", "left the test"
    return None


def _faults(result: WorldResult, clock: _Clock) -> Iterator[list[Any]]:
    """Yield faults that have happened: to whom, from when, until when, in words."""
    open_: dict[tuple[int, int], list[Any]] = {}
    for event in result.history:
        if event.kind != "fault" or event.detail["phase"] not in ("begun", "ended"):
            continue
        key = (event.detail["index"], event.rank)
        if event.detail["phase"] == "begun":
            if key in open_:
                yield open_[key]
            fault = result.spec.faults[event.detail["index"]]
            open_[key] = [event.rank, clock.us(event.at_s), OPEN, fault.kind, plain(repr(fault))]
        elif key in open_:
            yield [*open_[key][:2], clock.us(event.at_s), *open_.pop(key)[3:]]
    yield from open_.values()


# The diagnosis


def _waits(diagnosis: Diagnosis | None) -> list[list[Any]]:
    waits = diagnosis.waits_for if diagnosis is not None else ()
    return [
        [wait.rank, list(wait.for_), rank_set(wait.for_) if wait.for_ else ""] for wait in waits
    ]


def _chosen(diagnosis: Diagnosis | None) -> Mapping[str, Any] | None:
    """Return the operation that it is about, for the script to choose at first."""
    operation = diagnosis.operation if diagnosis is not None else None
    if operation is None:
        return None
    return {"name": operation.name, "sequence": operation.sequence, "group": list(operation.group)}
