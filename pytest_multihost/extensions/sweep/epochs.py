"""Finds the certain order of points of different ranks, whichever rank is late.

Operations that end only after all ranks have entered them divide a run into epochs. Every point of
an epoch comes before every point of the next one. Within an epoch any order is possible.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.classes import Records

Epoch = int | None
"""The epoch of a point; None if unknown."""


Epochs = Mapping[RecordedPoint, Epoch]


def may_be_concurrent(one: Epoch, other: Epoch) -> bool:
    """Return whether points of two ranks may come in either order."""
    return one is None or other is None or one == other


def order_of(points: Records, size: int) -> Epochs:
    """Return the epoch of each point that ranks passed.

    Only operations of main threads divide epochs, and only as long as all ranks pass the same ones
    in the same order. Points of other threads have no known epoch, because the start and the join
    of these threads are not recorded.
    """
    met = [[e.point.name for e in points.get(rank, ()) if _meets(e)] for rank in range(size)]
    common = 0
    for names in zip(*met, strict=False):
        if len(set(names)) > 1:
            break
        common += 1
    epochs: dict[RecordedPoint, Epoch] = {}
    for passed in points.values():
        number = 0
        for each in passed:
            epochs[each] = number if each.is_main else None
            number = min(number + _meets(each), common)
    return epochs


def _meets(passed: RecordedPoint) -> bool:
    return passed.meets_all and passed.is_main
