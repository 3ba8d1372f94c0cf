"""Which points of different ranks certainly come one after the other, whoever is late.

Operations that are over only once all ranks have entered them divide a run into epochs: what a
rank does in one comes before all that any rank does in the next. Within an epoch any order is
possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_multihost.model.sweep import RecordedPoint
from pytest_multihost.sweep.roles import Records

Epoch = int | None
"""The epoch of a point; None if it may be any."""


@dataclass(frozen=True, slots=True)
class Order:
    """The epochs of all points.

    Attributes:
        epochs: The epoch of each.
    """

    epochs: Mapping[RecordedPoint, Epoch] = field(default_factory=dict)

    def epoch_of(self, passed: RecordedPoint) -> Epoch:
        """Return the epoch of a point."""
        return self.epochs.get(passed)


def may_be_concurrent(one: Epoch, other: Epoch) -> bool:
    """Return whether points of two ranks may come in either order."""
    return one is None or other is None or one == other


def order_of(points: Records, size: int) -> Order:
    """Return the epochs of the points that ranks have passed.

    Only the operations of main threads count, as far as all ranks have passed the same, in the same
    order. Points of other threads may be of any epoch: nothing is known of when their threads were
    begun and awaited.
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
    return Order(epochs)


def _meets(passed: RecordedPoint) -> bool:
    return passed.meets_all and passed.is_main
