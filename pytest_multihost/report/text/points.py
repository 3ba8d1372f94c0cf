"""Which points a world's ranks have passed: what a fault could be bound to."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from pytest_multihost.model.event import Event, PointPassed
from pytest_multihost.model.fault import Point
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult


def passed_points(history: Iterable[Event], rank: int) -> tuple[str, ...]:
    """Return the points that a rank has passed, in order, repeated ones once with their number."""
    points = [
        Point(event.body.point, event.body.name)
        for event in history
        if isinstance(event.body, PointPassed) and event.rank == rank
    ]
    runs = [(point, len(list(same))) for point, same in groupby(points)]
    return tuple(f"{point!r} x{count}" if count > 1 else repr(point) for point, count in runs)


def points_lines(result: WorldResult) -> list[str]:
    """Return the points of a world, ranks that have passed the same ones together."""
    together: dict[tuple[str, ...], list[int]] = {}
    for rank in range(result.spec.size):
        together.setdefault(passed_points(result.history, rank), []).append(rank)
    lines = [f"{rank_set(ranks)}  {', '.join(seen) or 'none'}" for seen, ranks in together.items()]
    return [f"points of {result.spec.nodeid}", *(f"  {line}" for line in lines)]
