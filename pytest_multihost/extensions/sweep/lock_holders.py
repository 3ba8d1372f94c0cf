"""Finds the points that only the holder of a lock passes; in another run another rank may hold it.

The first rank makes a lock file and removes it; the other ranks look for the file. The points that
only that rank passes afterwards do not depend on its number, so a disturbance there is a fault of
the first rank at the point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pytest_multihost.core.model.fault import Fault, Point
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.classes import Records, is_of_the_test

_TAKES = frozenset({"link", "mkdir", "open"})
_GIVES_BACK = frozenset({"rename", "rmdir", "unlink"})

_Named = tuple[str, str]
"""The name and the call of a point."""


@dataclass(frozen=True, slots=True)
class LockHolders:
    """The points that only one rank passes after it has tried to take a lock.

    Attributes:
        alone: The rank of each such point, by name and call.
    """

    size: int
    alone: Mapping[_Named, int]

    def of_any(self, fault: Fault, passed: RecordedPoint) -> Fault:
        """Return a fault at a point; for the first rank there if that rank may vary."""
        point = passed.point
        is_here = fault.at.point == "io" and _named(fault.at) == _named(point)
        if not is_here or self.alone.get(_named(point)) != passed.rank:
            return fault
        return replace(fault, ranks=tuple(range(self.size)), is_first=True)


def lock_holders_of(points: Records, size: int) -> LockHolders:
    """Return the points that only one rank passes after it has tried to take a lock.

    Args:
        points: The points that each rank passed, in order.
    """
    ranks_of: dict[_Named, set[int]] = {}
    for rank, passed in points.items():
        for each in passed:
            if each.point.point == "io" and is_of_the_test(each):
                ranks_of.setdefault(_named(each.point), set()).add(rank)
    tried = {name for (name, call), ranks in ranks_of.items() if call in _TAKES and len(ranks) > 1}
    locks = {
        name
        for name in tried
        if "lock" in PurePosixPath(name).name.lower()
        or any(len(ranks_of.get((name, call), ())) == 1 for call in _GIVES_BACK)
    }
    alone: dict[_Named, int] = {}
    for rank, passed in points.items():
        has_tried = False
        for each in passed:
            named = _named(each.point)
            has_tried |= each.point.name in locks and each.point.call in _TAKES
            if has_tried and ranks_of.get(named) == {rank}:
                alone[named] = rank
    return LockHolders(size, alone)


def _named(point: Point) -> _Named:
    return point.name, point.call
