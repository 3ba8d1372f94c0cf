"""Builds the data of the timeline of a world's ranks, for the script that draws it.

Times are whole microseconds from the world's start. Repeated values are stored in tables and
referred to by index, so ten thousand operations take a few hundred kilobytes.

`axis` shortens silences. A world may work for half a second and hang for a minute: drawn to scale,
all events would be one line at the left edge. A span without events that is long compared with the
rest therefore gets a small share of the width, and is marked as a silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from pytest_multihost.core.model.event import FaultChanged, HoldEnded, Parked, SyncPointPassed
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.model.operation import HARNESS_SCOPE, Operation, OperationKind, Scope
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import Frame, short_path
from pytest_multihost.core.outcome import describe_exit
from pytest_multihost.core.report.html.render import display_text
from pytest_multihost.core.report.html.sections import PageModel, rank_groups

Json = dict[str, object]

MAX_OPERATIONS = 20_000
"""Maximum number of operations drawn; if there are more, each rank keeps its last ones."""

_MAX_TEXT = 120
"""Maximum length of a text on a lane; the page has the full text elsewhere."""

OPEN = -1
"""Placeholder for the length of an open operation, and for the wait of a never awaited one."""


def timeline_data(page: PageModel) -> Json:
    """Return the data that `lanes.js` draws, as JSON."""
    result, diagnosis, root = page.judged.result, page.judged.diagnosis, page.judged.context.root
    selected = diagnosis.operation if diagnosis else None
    us = result.us
    end_us = us(result.detected_s or result.ended_s)
    by_rank = {
        rank: [
            each
            for each in sorted(result.operations_of(rank), key=lambda each: each.since_s)
            if each.source == "recorder" or each.scope != HARNESS_SCOPE
        ]
        for rank in range(result.spec.size)
    }
    kept = max(1, MAX_OPERATIONS // result.spec.size)
    tables = _Tables({}, {}, {})
    operations = [
        [number for each in found[-kept:] for number in _numbers(each, result, tables)]
        for found in by_rank.values()
    ]
    marks = sorted(_marks(page))
    faults, names = list(_faults(result)), result.spec.names
    known = chain.from_iterable(by_rank.values())
    instants = chain(
        (us(at_s) for each in known for at_s in (each.since_s, each.ended_s) if at_s is not None),
        (mark.at_us for mark in marks),
        (at_us for each in faults for at_us in (each.begin_us, each.end_us) if at_us != OPEN),
    )
    return {
        "end": end_us,
        "axis": axis(instants, end_us),
        "go": us(result.go_s) if result.go_s is not None else None,
        "progress": us(result.progress_s) if result.progress_s else None,
        "judged": us(result.detected_s) if result.detected_s else None,
        "ranks": list(_lanes(page, end_us)),
        "kinds": [_kind(each, names) for _, each in tables.kinds.values()],
        "places": [
            display_text(f"{short_path(root, each.file)}:{each.line}") if each else ""
            for each in tables.frames
        ],
        "details": [display_text(each) for each in tables.details],
        "operations": operations,
        "marks": marks,
        "faults": faults,
        # For each waiting rank, the ranks that it waits for, as numbers and as text.
        "waits": [
            (wait.rank, wait.for_, names.of(wait.for_) if wait.for_ else "")
            for wait in (diagnosis.waits_for if diagnosis else ())
        ],
        # The operation of the diagnosis, which the script selects at the start.
        "selected": to_json(selected) if selected else None,
        "left_out": sum(max(0, len(each) - kept) for each in by_rank.values()),
    }


_Kind = tuple[str, OperationKind, tuple[int, ...], int, Scope, int | None]
"""The properties shared by operations at one point of a program; see `_numbers`."""


class _Tables(NamedTuple):
    """Distinct values in the order of their first occurrence, each with its index.

    A kind is stored with its first operation.
    """

    kinds: dict[_Kind, tuple[int, Operation]]
    frames: dict[Frame | None, int]
    details: dict[str, int]


def _numbers(each: Operation, result: WorldResult, tables: _Tables) -> tuple[int, ...]:
    """Return an operation as the eight numbers that `operationsOf` in lanes.js reads."""
    key = each.name, each.kind, each.group, each.ordinal, each.scope, each.peer
    kind, _ = tables.kinds.setdefault(key, (len(tables.kinds), each))
    us, begin_us = result.us, result.us(each.since_s)
    return (
        kind,
        each.sequence,
        begin_us,
        OPEN if each.ended_s is None else us(each.ended_s) - begin_us,
        OPEN if each.waited_s is None else us(each.waited_s) - begin_us,
        tables.frames.setdefault(each.frame, len(tables.frames)),
        tables.details.setdefault(each.detail, len(tables.details)),
        int(each.failed),
    )


def _kind(sample: Operation, names: Names) -> Json:
    group = sample.group_name(names)
    return {
        "name": display_text(sample.name),
        "kind": sample.kind,
        "group": sample.group,
        # Operations with the same key and sequence number match each other.
        "meets": f"{sample.group}/{sample.ordinal}/{sample.scope}",
        "of": f"({group})" if group else "",
        "peer": sample.peer,
    }


def _lanes(page: PageModel, end_us: int) -> Iterator[Json]:
    us = page.judged.result.us
    groups = {rank: group for group in rank_groups(page) for rank in group.ranks}
    for each in page.judged.finding.ranks:
        facts, group = each.facts, groups[each.facts.rank]
        at = group.place
        where = (at.source or at.function, f"{at.file}:{at.line}") if at else (group.doing,)
        ended = (at_s for at_s in (facts.parked_s, facts.exited_s) if at_s is not None)
        yield {
            "rank": facts.rank,
            "role": page.blame(facts.rank),
            "state": display_text(group.state),
            "text": _text(" · ".join(part for part in (group.state, *where) if part)),
            "ready": us(facts.ready_s) if facts.ready_s is not None else None,
            "end": min([end_us, *map(us, ended)]),
        }


def _text(text: str) -> str:
    return display_text(text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…")


class _Mark(NamedTuple):
    """An instant at which something happened to a rank; `sort` chooses how it is drawn."""

    at_us: int
    rank: int
    sort: str
    text: str


def _marks(page: PageModel) -> Iterator[_Mark]:
    us = page.judged.result.us
    for event in page.judged.result.history:
        match event.body:
            case SyncPointPassed(name):
                text = display_text(f"sync point {name}")
                yield _Mark(us(event.at_s), event.rank, "point", text)
            case Parked():
                text = f"returned from the {page.judged.result.spec.subject}"
                yield _Mark(us(event.at_s), event.rank, "returned", text)
    for each in page.judged.finding.ranks:
        facts = each.facts
        if each.at_s is not None and not facts.has_died:
            yield _Mark(us(each.at_s), facts.rank, "raised", _text(each.summary))
        if facts.exit is not None and facts.exited_s is not None and not facts.was_ended:
            is_planned = each.outcome == "killed_as_planned"
            sort = "killed" if is_planned else "died" if facts.has_died else "left"
            yield _Mark(us(facts.exited_s), facts.rank, sort, describe_exit(facts.exit))


class _Fault(NamedTuple):
    """A fault that has fired in a rank."""

    rank: int
    begin_us: int
    end_us: int
    kind: str
    text: str


def _faults(result: WorldResult) -> Iterator[_Fault]:
    active: dict[tuple[int, int], _Fault] = {}
    for event in result.history:
        match event.body:
            case FaultChanged(index=index, phase="begun"):
                if (before := active.pop((index, event.rank), None)) is not None:
                    yield before
                fault, begin_us = result.spec.faults[index], result.us(event.at_s)
                text = display_text(repr(fault))
                active[index, event.rank] = _Fault(event.rank, begin_us, OPEN, fault.kind, text)
            case HoldEnded(index, reason) if (index, event.rank) in active:
                held = active[index, event.rank]
                active[index, event.rank] = held._replace(text=f"{held.text}: {reason}")
            case FaultChanged(index=index, phase="ended") if (index, event.rank) in active:
                yield active.pop((index, event.rank))._replace(end_us=result.us(event.at_s))
    yield from active.values()


_LONG = 0.3
"""A silence is long if it has this share of all the time that is not in longer silences."""

_MIN_SILENCE = 0.1
"""Minimum share of all time for a silence to be shortened."""

_READABLE = 0.3
"""If the spans with events have this share of all time, no silence is shortened."""

_MAX_SILENCES = 4
_SHARE = 0.1
_LAST_SHARE = 0.3
"""Shares of the width: for a long silence, and for the last silence, which is the hang itself."""


class AxisSpan(NamedTuple):
    """A span of time and its part of the width, from 0 to 1."""

    begin: float
    end: float
    left: float
    right: float
    is_silence: bool = False


def axis(instants: Iterable[float], end: float) -> list[AxisSpan]:
    """Return the time from 0 to the end as spans, each with one scale.

    Args:
        end: The end of the axis, in the same unit as the instants.
    """
    times = sorted({0, end, *(at for at in instants if 0 < at < end)})
    silences = _long_silences(times, end)
    shares = [_LAST_SHARE if until == end else _SHARE for _, until in silences]
    busy = end - sum(until - begin for begin, until in silences)
    per_unit = (1 - sum(shares)) / busy if busy > 0 else 0.0
    spans: list[AxisSpan] = []
    at, left = 0.0, 0.0  # how far the spans reach
    for (begin, until), share in [*zip(silences, shares, strict=True), ((end, end), 0.0)]:
        if begin > at:
            right = left + (begin - at) * per_unit
            spans.append(AxisSpan(at, begin, left, right))
            left = right
        if until > begin:
            spans.append(AxisSpan(begin, until, left, left + share, is_silence=True))
        at, left = until, left + share
    return spans


def _long_silences(times: Sequence[float], end: float) -> list[tuple[float, float]]:
    """Return the spans without events that are long compared with the rest, in order."""
    gaps = sorted(pairwise(times), key=lambda gap: gap[0] - gap[1])
    rest, found = end, list[tuple[float, float]]()
    for begin, until in gaps[:_MAX_SILENCES]:
        length = until - begin
        if length < max(_LONG * rest, _MIN_SILENCE * end) or length >= rest:
            break
        found.append((begin, until))
        rest -= length
    return sorted(found) if rest < _READABLE * end else []
