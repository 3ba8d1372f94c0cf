"""The points that the ranks of a world have passed, as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.intercept.recorded import recorded_points, unrecorded_points


def _passed_points(points: Iterable[RecordedPoint], more: int) -> tuple[str, ...]:
    """Return points in order, each repeated one once with a count, and how many more there are."""
    runs = groupby(replace(each.point, nth=1) for each in points)
    counts = [(point, len(list(same))) for point, same in runs]
    found = [f"{point!r} x{count}" if count > 1 else repr(point) for point, count in counts]
    return (*found, f"and {more} more") if more else tuple(found)


def points_lines(result: WorldResult) -> list[str]:
    """Return the points of a world, one line for ranks that have passed the same points."""
    points, more = recorded_points(result.history), unrecorded_points(result.history)
    ranks = range(result.spec.size)
    together = group_by_value(
        (_passed_points(points.get(rank, ()), more.get(rank, 0)), rank) for rank in ranks
    )
    lines = [
        f"{result.spec.names.of(ranks)}  {', '.join(seen) or 'none'}"
        for seen, ranks in together.items()
    ]
    return [f"points of {result.spec.nodeid}", *(f"  {line}" for line in lines)]
