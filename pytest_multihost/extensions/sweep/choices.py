"""Defines the input of a family of disturbances, its choices, and their order.

Faults have a turn and a weight: a sweep runs lower turns first, and within a turn lower weights
first. The weights follow from measurements (`MEASURED`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.extensions.sweep.classes import (
    Records,
    is_of_the_test,
    roles_of,
)
from pytest_multihost.extensions.sweep.epochs import order_of
from pytest_multihost.extensions.sweep.local_decisions.decisions import (
    NO_DECISIONS,
    LocalDecisions,
)
from pytest_multihost.extensions.sweep.sharing import Sharing, sharing_of

MATCHED = frozenset(each.name for each in COLLECTIVES if not each.has_root)
"""Operations in which all ranks do the same, and wait for particular ranks, not for any rank."""

ROOTED = frozenset(each.name for each in COLLECTIVES if each.has_root)
"""Operations in which one rank acts differently from the others."""


BESIDE = (
    "multiprocessing.connection:Connection.recv",
    "concurrent.futures:Future.set_result",
    "threading:Thread.run",
)
"""Functions of work beside the main thread: a thread takes the answer of a process, its work is
done, or it begins."""


def is_beside(function: str) -> bool:
    """Return whether a function is one of these, or the `run` of a class of threads."""
    return function in BESIDE or function.endswith(".run")


STARTS = ("multiprocessing.process:BaseProcess.start", "subprocess:Popen.__init__")
"""Functions that start processes of a rank."""


class Weight(IntEnum):
    """The order of the kinds of choices within one turn; the lowest weight runs first.

    It is the order of `MEASURED`: weaknesses per second of disturbed worlds, the most first. Kinds
    that the sample has too few of come where their causes suggest. Rates that differ by less than a
    fifth are equal; after the last operation, where DDP may still launch some, failures show more.
    """

    HASH_SEED = 10
    ELAPSED = 11
    SHORT_DATA = 12
    DECISION = 13
    STALE = 14
    ORDER = 15
    FAILS_AT_END = 16
    FAILS_EVERYWHERE = 17
    FAILS_LOOK = 18
    FAILS_ALONE = 19
    LATE_AT_SHARED_CHANGE = 20
    LATE_AT_SHARED_LOOK = 21
    LATE_BESIDE = 22
    LATE_AT_SYNC_POINT = 23
    CLOCK = 24
    LATE_AT_OPERATION = 25
    LATE_ALONE = 26


# Of 222 sweeps: all programs of the latent corpus, sound ones among them, with a budget of 60 s
# each, by `benchmarks/latent.py --keep FOLDER` and `benchmarks/choices.py --measured FOLDER`. Kinds
# without a line have not been measured.
MEASURED: Mapping[Weight, tuple[int, int]] = {
    Weight.HASH_SEED: (3, 4),
    Weight.ELAPSED: (5, 7),
    Weight.SHORT_DATA: (18, 33),
    Weight.DECISION: (17, 36),
    Weight.STALE: (41, 92),
    Weight.ORDER: (5, 15),
    Weight.FAILS_EVERYWHERE: (11, 45),
    Weight.FAILS_AT_END: (20, 93),
    Weight.FAILS_LOOK: (26, 157),
    Weight.FAILS_ALONE: (61, 429),
    Weight.LATE_AT_SHARED_CHANGE: (14, 206),
    Weight.LATE_AT_SHARED_LOOK: (4, 76),
    Weight.LATE_BESIDE: (12, 261),
    Weight.CLOCK: (7, 324),
    Weight.LATE_AT_OPERATION: (5, 269),
}
"""Weaknesses that worlds of each kind have shown, and the seconds of these worlds."""

ENOUGH_S = 60
"""Seconds of worlds that tell whether a kind of choice finds anything."""


def rare_kinds(
    measured: Mapping[Weight, tuple[int, int]] = MEASURED,
) -> frozenset[Weight]:
    """Return the kinds that have found nothing in any corpus, so only a named family has them."""
    return frozenset(
        kind for kind, (shown, seconds) in measured.items() if not shown and seconds >= ENOUGH_S
    )


SECOND_TURN, LATER_TURN, LAST_TURN = 1, 2, 5
"""The turn of a class's other end, of costly faults, and of faults that rarely show anything."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A fault at a point, with its place in the order.

    Attributes:
        weight: Orders the choices of one turn.
        class_: Equal for choices that likely show the same.
        alike: Other lines with points of the same class.
    """

    turn: int
    weight: int
    fault: Fault
    passed: RecordedPoint
    class_: Hashable
    alike: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UndisturbedRun:
    """The facts about the undisturbed run, and the functions that the user named.

    Attributes:
        points: The points that each rank passed, in order.
        roles: The ranks of each role; the role of rank 0 is first.
        decisions: Functions, as ``module:function``, that return another truth value on one rank.
        values: Functions whose numbers become NaN on one rank.
        local: The decisions that ranks take from data that they alone see.
        has_values: Whether ranks have stated values that all are to have.
        has_hashes: Whether the test's code may depend on hashes of strings.
    """

    points: Records
    roles: tuple[tuple[int, ...], ...]
    size: int
    sharing: Sharing
    decisions: Sequence[str] = ()
    values: Sequence[str] = ()
    local: LocalDecisions = NO_DECISIONS
    has_values: bool = False
    has_hashes: bool = True

    @classmethod
    def of(
        cls,
        points: Records,
        size: int,
        decisions: Sequence[str],
        values: Sequence[str],
        local: LocalDecisions = NO_DECISIONS,
        *,
        has_values: bool = False,
        has_hashes: bool = True,
    ) -> UndisturbedRun:
        """Return the run with the given points."""
        return cls(
            points=points,
            roles=roles_of(points, size),
            size=size,
            sharing=sharing_of(points, order_of(points, size)),
            decisions=decisions,
            values=values,
            local=local,
            has_values=has_values,
            has_hashes=has_hashes,
        )

    @property
    def of_the_test(self) -> Iterator[RecordedPoint]:
        """The points of all ranks that belong to the test."""
        return (each for found in self.points.values() for each in found if is_of_the_test(each))


@dataclass(frozen=True, slots=True)
class SweptRole:
    """Ranks that pass the same points.

    Attributes:
        points: The points of the first of these ranks.
        points_of_last: The points of the last one.
    """

    ranks: tuple[int, ...]
    points: Sequence[RecordedPoint]
    points_of_last: Sequence[RecordedPoint]
    run: UndisturbedRun

    @classmethod
    def of(cls, ranks: tuple[int, ...], run: UndisturbedRun) -> SweptRole:
        """Return the role of these ranks."""
        return cls(ranks, run.points.get(ranks[0], ()), run.points.get(ranks[-1], ()), run)

    @property
    def is_everybody(self) -> bool:
        """Whether all ranks have this role."""
        return len(self.ranks) == self.run.size

    @property
    def operations(self) -> list[RecordedPoint]:
        """The operations of its first rank."""
        return [each for each in self.points if each.point.point == "collective"]

    def of_rank(self, rank: int) -> list[RecordedPoint]:
        """Return the points of its first or last rank that belong to the test."""
        points = self.points if rank == self.ranks[0] else self.points_of_last
        return [each for each in points if is_of_the_test(each)]

    @property
    def disturbed(self) -> tuple[int, ...]:
        """The ranks of the role to disturb, because they may show different weaknesses.

        One rank is enough if all do the same, also in their operations, because the ranks are
        interchangeable. The first and the last are tried if one of them is the root of an
        operation, or if ranks distinguish each other: by messages, by keys of a store, or in an
        operation of the user's.
        """
        names = {each.point.name for each in self.operations}
        others = names - MATCHED
        has_root = 0 in self.ranks or not others <= ROOTED
        if others and has_root:
            return tuple(dict.fromkeys((self.ranks[-1], self.ranks[0])))
        return self.ranks[-1:]
