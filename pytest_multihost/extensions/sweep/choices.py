"""What a family of disturbances chooses from, what it chooses, and how early that is run.

Faults have a turn and a weight: those of a lower turn are run first, of one turn those of a lower
weight. The weights follow from what published hangs were caused by: a file that one rank writes and
another looks for, a failure on the one rank that works between two operations, data that end early.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.extensions.sweep.classes import (
    Records,
    SpanKind,
    classes_of,
    is_of_the_test,
    roles_of,
    site_of,
)
from pytest_multihost.extensions.sweep.sharing import Sharing, order_of, sharing_of

MATCHED = frozenset(each.name for each in COLLECTIVES if not each.has_root)
"""Operations in which each rank does the same, and waits for particular ranks, not for any."""

ROOTED = frozenset(each.name for each in COLLECTIVES if each.has_root)
"""Operations in which one rank does something else than the others."""


class Weight(IntEnum):
    """How early a fault is run among those of one turn; the lowest first."""

    LATE_AT_SHARED_CHANGE = 10
    SHORT_DATA = 11
    LATE_AT_SHARED_LOOK = 12
    ORDER = 13
    STALE = 14
    FAILS_ALONE = 15
    DECISION = 16
    FAILS_EVERYWHERE = 18
    FAILS_LOOK = 24
    LATE_AT_SYNC_POINT = 25
    CLOCK = 28
    LATE_AT_OPERATION = 30
    FAILS_AT_END = 35
    REQUESTED = 40
    LATE_ALONE = 45
    HASH_SEED = 50


SECOND_TURN, LATER_TURN, LAST_TURN = 1, 2, 5
"""Turns: of what a class may show at its other end, of what is costly, of what is rarely shown."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A fault at a point, with its place in the order.

    Attributes:
        weight: Its place within the turn.
        class_: Equal for what likely shows the same.
        alike: Other lines at which its class is passed.
    """

    turn: int
    weight: int
    fault: Fault
    passed: RecordedPoint
    class_: Hashable
    alike: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UndisturbedRun:
    """What is known of the run that a sweep disturbs, and what the user has named.

    Attributes:
        points: The points that each rank has passed, in order.
        roles: The ranks of each role, that of rank 0 first.
        size: Ranks of the world.
        sharing: Which files ranks share.
        decisions: Functions, as ``module:function``, that return another truth value on one rank.
        values: Functions whose numbers become NaN on one rank.
    """

    points: Records
    roles: tuple[tuple[int, ...], ...]
    size: int
    sharing: Sharing
    decisions: Sequence[str] = ()
    values: Sequence[str] = ()

    @classmethod
    def of(
        cls, points: Records, size: int, decisions: Sequence[str], values: Sequence[str]
    ) -> UndisturbedRun:
        """Return what follows from the points that ranks have passed."""
        return cls(
            points=points,
            roles=roles_of(points, size),
            size=size,
            sharing=sharing_of(points, order_of(points, size)),
            decisions=decisions,
            values=values,
        )

    @property
    def of_the_test(self) -> Iterator[RecordedPoint]:
        """The points of all ranks that are the test's business."""
        return (each for found in self.points.values() for each in found if is_of_the_test(each))


@dataclass(frozen=True, slots=True)
class Role:
    """Ranks that pass the same points, and what is known of them.

    Attributes:
        ranks: The ranks.
        points: The points of the first of them.
        points_of_last: Those of the last.
        run: The run.
    """

    ranks: tuple[int, ...]
    points: Sequence[RecordedPoint]
    points_of_last: Sequence[RecordedPoint]
    run: UndisturbedRun

    @classmethod
    def of(cls, ranks: tuple[int, ...], run: UndisturbedRun) -> Role:
        """Return what is known of ranks."""
        return cls(ranks, run.points.get(ranks[0], ()), run.points.get(ranks[-1], ()), run)

    @property
    def is_everybody(self) -> bool:
        """Whether all ranks are of the role."""
        return len(self.ranks) == self.run.size

    @property
    def operations(self) -> list[RecordedPoint]:
        """The operations of its first rank."""
        return [each for each in self.points if each.point.point == "collective"]

    def of_rank(self, rank: int) -> list[RecordedPoint]:
        """Return what of its points is the test's business, as one of the two ranks passes it."""
        points = self.points if rank == self.ranks[0] else self.points_of_last
        return [each for each in points if is_of_the_test(each)]

    @property
    def disturbed(self) -> tuple[int, ...]:
        """The ranks of it that may show different things.

        One is enough where all do the same, also in their operations: the ranks can be exchanged.
        The first and the last are tried where one of them is the root of an operation, or ranks
        tell each other apart: by messages, by keys of a store, or in an operation of the user's.
        """
        names = {each.point.name for each in self.operations}
        others = names - MATCHED
        has_root = 0 in self.ranks or not others <= ROOTED
        if others and has_root:
            return tuple(dict.fromkeys((self.ranks[-1], self.ranks[0])))
        return self.ranks[-1:]


def choices_at_ends(
    role: Role,
    is_wanted: Callable[[RecordedPoint], bool],
    fault_at: Callable[[RecordedPoint], Fault],
    weight: Weight,
) -> Iterator[Choice]:
    """Yield a fault at the first and the last point of each line and kind of span.

    Args:
        role: The ranks.
        is_wanted: Whether something is to be done at a point.
        fault_at: What is done there.
        weight: Its place within the turn.
    """

    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        return (site_of(passed), kind) if is_wanted(passed) else None

    for found in classes_of(role.points, role.points_of_last, key):
        for turn, passed in enumerate(found.ends):
            yield Choice(turn, weight, fault_at(passed), passed, found.key)
