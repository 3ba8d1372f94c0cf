"""The points that ranks have passed, from the events in which they have recorded them."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.event import Event, PointSite, PointsRecorded
from pytest_multihost.core.model.fault import Point
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.model.verdict import Place

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

    Each has the `nth` with which `at` names this passage. A point that represents others appears
    without them: `all_gather_object`, not the collectives inside it, which only count.

    Args:
        place: Converts frames to places; by default without the lines' texts.
    """
    return {rank: _points(rank, each, place) for rank, each in _records(history).items()}


def unrecorded_points(history: Iterable[Event]) -> Mapping[int, int]:
    """Return how many points ranks have passed without a record, because there were too many."""
    found = Counter[int]()
    for event in history:
        if isinstance(event.body, PointsRecorded) and event.body.beyond:
            found[event.rank] += event.body.beyond
    return found


@dataclass(frozen=True, slots=True)
class _Record:
    """The records of a rank: its sites, and the numbers of the passed ones."""

    sites: list[PointSite] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)


def _records(history: Iterable[Event]) -> Mapping[int, _Record]:
    """Return the records of each rank, ranks ascending."""
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
    """Let the last operation meet all ranks if `inner`, a part of it, does."""
    for index in range(len(found) - 1, -1, -1):
        each = found[index]
        if each.point.point == "collective" and each.is_main == inner.is_main:
            found[index] = replace(each, meets_all=each.meets_all or inner.meets_all)
            return


def _counted_together(sites: Iterable[PointSite]) -> dict[Point, list[tuple[Point, str]]]:
    """Return for each point the points that `at` counts with it: a glob also matches other files.

    A counted point comes with the other path of a rename.
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
