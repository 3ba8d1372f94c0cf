"""Which points are passed by whoever holds a lock: in another run that may be another rank.

A lock file is made by the rank that comes first, and removed by it; the others look for it. What
only that rank does afterwards is not bound to its number, so a disturbance of it is one of
whichever rank comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pytest_multihost.model.fault import Fault, Point
from pytest_multihost.model.sweep import RecordedPoint
from pytest_multihost.sweep.classes import is_of_the_test
from pytest_multihost.sweep.roles import Records

_TAKES = frozenset({"link", "mkdir", "open"})
_GIVES_BACK = frozenset({"rename", "rmdir", "unlink"})

_Named = tuple[str, str]
"""Name and call of a point."""


@dataclass(frozen=True, slots=True)
class LockHolders:
    """The points that one rank alone passes after several have tried to take a lock.

    Attributes:
        size: Number of ranks.
        alone: Those points, by name and call, each with its rank.
    """

    size: int
    alone: Mapping[_Named, int]

    def of_any(self, fault: Fault, passed: RecordedPoint) -> Fault:
        """Return a fault at a point, for whichever rank passes it first if that may vary."""
        point = passed.point
        is_here = fault.at.point == "io" and _named(fault.at) == _named(point)
        if not is_here or self.alone.get(_named(point)) != passed.rank:
            return fault
        return replace(fault, ranks=tuple(range(self.size)), is_first=True)


def lock_holders_of(points: Records, size: int) -> LockHolders:
    """Return what is done by one rank alone since it may have taken a lock.

    Args:
        points: The points that each rank has passed, in order.
        size: Ranks of the world.
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
