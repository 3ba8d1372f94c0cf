"""The points that ranks have passed, from the events in which they have recorded them."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pytest_multihost.model.event import Event, PointSite, PointsRecorded
from pytest_multihost.model.fault import Point
from pytest_multihost.model.stack import Frame
from pytest_multihost.model.sweep import RecordedPoint
from pytest_multihost.model.verdict import Place

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
    records: dict[int, _Record] = {}
    for event in history:
        if isinstance(event.body, PointsRecorded):
            record = records.setdefault(event.rank, _Record())
            record.sites.extend(event.body.sites)
            known = range(len(record.sites))
            record.passed.extend(each for each in event.body.passed if each in known)
    return {rank: _points(rank, record, place) for rank, record in sorted(records.items())}


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


def _points(rank: int, record: _Record, place: PlaceOf) -> tuple[RecordedPoint, ...]:
    places = [place(each.frame) if each.frame else None for each in record.sites]
    counted = _counted_together({each.point for each in record.sites})
    passages = Counter[Point]()
    found, span = [], 0
    for number in record.passed:
        site = record.sites[number]
        passages[site.point] += 1
        if not site.is_inner:
            nth = sum(passages[each] for each in counted[site.point])
            point = replace(site.point, nth=nth)
            found.append(RecordedPoint(rank, point, span, site.is_main, places[number]))
            span += site.point.point == "collective"
    return tuple(found)


def _counted_together(points: Iterable[Point]) -> dict[Point, list[Point]]:
    """Return for each point those that `at` counts with it: a glob matches other files, too."""
    points = list(points)
    found = {each: [each] for each in points}
    texts = {each: _ESCAPED.sub(r"\1", each.name) for each in points if each.point == "io"}
    for point in texts:
        pieces = _STAR.split(point.name)
        if len(pieces) == 1:
            continue
        matches = re.compile(fnmatch.translate(point.name)).match
        tail = _ESCAPED.sub(r"\1", pieces[-1])
        found[point] = [
            other
            for other, text in texts.items()
            if other.call == point.call and text.endswith(tail) and matches(text)
        ]
    return found
