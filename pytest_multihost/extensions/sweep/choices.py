"""What is chosen to be done to a rank at a point, and how early it is run.

Faults have a turn and a weight: those of a lower turn are run first, of one turn those of a lower
weight. The weights follow from what published hangs were caused by: a file that one rank writes and
another looks for, a failure on the one rank that works between two operations, data that end early.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from pytest_multihost import faults
from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.fault import FIELD_ERRORS, START, Fault, Point
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.extensions.sweep.classes import (
    Records,
    Site,
    SpanKind,
    classes_of,
    is_of_the_test,
    site_of,
)
from pytest_multihost.extensions.sweep.family import Family
from pytest_multihost.extensions.sweep.sharing import Sharing

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
        family: What it does.
        class_: Equal for what likely shows the same.
        alike: Other lines at which its class is passed.
    """

    turn: int
    weight: int
    family: Family
    fault: Fault
    passed: RecordedPoint
    class_: Hashable
    alike: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """Ranks that pass the same points, and what is known of them.

    Attributes:
        points: The points of the first of them.
        points_of_last: Those of the last.
        is_everybody: Whether all ranks are of the role.
        sharing: Which files ranks share.
    """

    ranks: tuple[int, ...]
    points: Sequence[RecordedPoint]
    points_of_last: Sequence[RecordedPoint]
    is_everybody: bool
    sharing: Sharing

    @classmethod
    def of(cls, ranks: tuple[int, ...], points: Records, size: int, sharing: Sharing) -> Role:
        """Return what is known of ranks."""
        first, last = points.get(ranks[0], ()), points.get(ranks[-1], ())
        return cls(ranks, first, last, len(ranks) == size, sharing)

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


# Which calls fail, one for each way that their errors take; and what fails on request.


def choices_of_failures(role: Role) -> Iterator[Choice]:
    """Yield which calls on files fail, once and from then on.

    Not the drawing of a batch: what it reads are files, and data in memory never fail.

    Exceptions of one class that are raised in one kind of span and take the same way meet the same
    handler, and what follows is the same. Only what the rank had done by then differs: the last is
    tried as well if there are other rounds of a loop, or if others see files that were touched in
    between. Where libraries handle errors, one of each of their functions is planned, as some may
    swallow them; what the first shows says whether more of them are run (`plan.order_rest`). From
    then on a call need not fail if nothing handles its first failure.
    """
    last_span = len(role.operations) - 1

    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        if passed.point.point != "io":
            return None
        return _way(passed), kind

    for found in classes_of(role.points, role.points_of_last, key):
        is_seen = any(map(role.sharing.is_seen, found.points))
        spans = {each.span for each in found.points}
        ways = {each.error_path: each for each in reversed(found.points)}
        tried = [(0, found.points[0]), *((LATER_TURN, each) for each in reversed(ways.values()))]
        if (is_seen and not found.is_poll) or len(spans) > 1:
            tried.append((SECOND_TURN, found.ends[-1]))
        elif len(role.disturbed) > 1:
            tried += [(SECOND_TURN, each) for each in found.points_of_last[:1]]
        for turn, passed in tried:
            weight = _weight_of_failure(role, passed, last_span)
            fault = faults.fails(rank=passed.rank, at=passed.point)
            alike = found.lines_beside(passed)
            yield Choice(turn, weight, "fails", fault, passed, found.key, alike)
            if passed.error_path.is_handled:
                onwards = replace(passed.point, onwards=True)
                fault = faults.fails(rank=passed.rank, at=onwards)
                yield Choice(turn + SECOND_TURN, weight, "fails", fault, passed, found.key, alike)


def _way(passed: RecordedPoint) -> Hashable:
    """Return what is equal for failures that take the same way.

    Of other threads than the main one it is not known who waits for them, so each line is one.
    """
    name = FIELD_ERRORS.get(passed.point.call, "EIO")
    kind = type(OSError(getattr(errno, name), "")).__name__
    if passed.error_path.handler and passed.is_main:
        return kind, passed.error_path.handler, passed.error_path.at
    return kind, passed.error_path, site_of(passed)


def _weight_of_failure(role: Role, passed: RecordedPoint, last_span: int) -> Weight:
    if passed.span > last_span:
        return Weight.FAILS_AT_END
    if passed.point.call in ("stat", "rmdir", "unlink"):  # often ignored, as meant
        return Weight.FAILS_LOOK
    return Weight.FAILS_EVERYWHERE if role.is_everybody else Weight.FAILS_ALONE


# On request


def choices_on_request(role: Role, family: Family) -> Iterator[Choice]:
    """Yield how operations raise, or the process dies.

    That is at the first and the last point of each line and kind of span.
    """

    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        is_wanted = family == "killed" or passed.point.point in ("batch", "collective")
        return (site_of(passed), kind) if is_wanted else None

    for found in classes_of(role.points, role.points_of_last, key):
        for turn, passed in enumerate(found.ends):
            fault = _on_request(passed, family)
            yield Choice(turn, Weight.REQUESTED, family, fault, passed, found.key)


def _on_request(passed: RecordedPoint, family: Family) -> Fault:
    rank, point = passed.rank, passed.point
    if family == "killed":
        return faults.kill(rank=rank, at=point)
    if point.point == "batch":
        message = "cannot read the data"
        return faults.raise_at(rank=rank, error=OSError, message=message, at=point)
    return faults.fails(rank=rank, at=point)


# What a rank sees otherwise than the others: files, data, clocks, hashes, results of functions.


STALE_S = 2.0
"""How long files of others are hidden: longer than a test takes from the write to the look."""

HASH_SEEDS = (1, 2)
"""Of the rank that hashes otherwise: under one seed two texts often are in the order of another."""

SKEW_S = 7200.0
"""How far a clock is wrong: more than what jobs do by the hour."""


def choices_of_differences(
    role: Role, decisions: Sequence[str], values: Sequence[str], unused: frozenset[str]
) -> Iterator[Choice]:
    """Yield what a rank of a role sees otherwise than the others."""
    for turn, rank in enumerate(role.disturbed):
        points = role.of_rank(rank)
        yield from _other_files(points, turn, role.sharing)
        if points and "clock" not in unused:
            yield from _clocks(points, turn)
        yield from _data([each for each in points if each.point.point == "batch"], turn)
        yield from _calls(rank, points, turn, decisions, values)


def _other_files(points: Sequence[RecordedPoint], turn: int, sharing: Sharing) -> Iterator[Choice]:
    """Yield what a rank sees otherwise of files, of the first and the last that each line uses.

    Args:
        points: All points of a rank, in order.
        turn: The turn of the likeliest.
        sharing: Who makes which files.
    """
    views: dict[Site, dict[Fault, RecordedPoint]] = {}
    for each in points:
        for fault in _views(each, sharing) if each.point.point == "io" else ():
            views.setdefault(site_of(each), {}).setdefault(fault, each)
    for site, found in views.items():
        for kind, weight in (("shuffled_listing", Weight.ORDER), ("stale_files", Weight.STALE)):
            of_kind = [each for each in found.items() if each[0].kind == kind]
            ends = {each[0]: each for each in (*of_kind[:1], *of_kind[-1:])}
            for later, (fault, passed) in enumerate(ends.values()):
                yield Choice(turn + later, weight, "differs", fault, passed, (kind, site))


def _views(passed: RecordedPoint, sharing: Sharing) -> Iterator[Fault]:
    """Yield how else files can look to a call: in another order, or not there yet."""
    rank, path = passed.rank, passed.point.name
    if passed.point.call == "listdir" and not sharing.has_one_order(path):
        yield faults.shuffled_listing(rank=rank, path=path)
    for hidden in sharing.made_by_others(passed):
        yield faults.stale_files(rank=rank, seconds=STALE_S, path=hidden)


def _data(draws: Sequence[RecordedPoint], turn: int) -> Iterator[Choice]:
    """Yield what ends a rank's data early: one batch less, one batch only, none.

    Args:
        draws: All that a rank has drawn, in order; the end of data is drawn, too.
        turn: The turn of the likeliest.
    """
    by_site: dict[Site, list[RecordedPoint]] = {}
    for each in draws:
        by_site.setdefault(site_of(each), []).append(each)
    for site, drawn in by_site.items():
        first, last = drawn[0], drawn[-1]
        # The last draw finds the end, unless the program stops before.
        ends = [drawn[-2], last] if len(drawn) > 1 else [last]
        short = [(0, ends[0]), (LATER_TURN, drawn[min(1, len(drawn) - 1)])]
        short += [(LATER_TURN, each) for each in ends[1:]]
        for later, passed in short:
            fault = faults.short_data(rank=passed.rank, at=passed.point)
            yield Choice(turn + later, Weight.SHORT_DATA, "differs", fault, passed, ("data", site))
        fault = faults.empty_data(rank=first.rank, at=first.point)
        yield Choice(turn, Weight.SHORT_DATA, "differs", fault, first, ("data", site))


def _clocks(points: Sequence[RecordedPoint], turn: int) -> Iterator[Choice]:
    """Yield what makes a rank's wall clock wrong: from the middle on, from the start on.

    What the clock says at the start and at the end is compared; if it is wrong all the time, that
    cancels out.

    Args:
        points: All points of a rank, in order.
        turn: The turn of the likeliest.
    """
    middle = next((each for each in points if each.span > 0), points[len(points) // 2])
    for later, at in ((0, middle.point), (1, START)):
        fault = faults.clock_skew(rank=middle.rank, seconds=SKEW_S, at=at)
        yield Choice(turn + later, Weight.CLOCK, "differs", fault, middle, "clock")


def choices_of_hashes(passed: RecordedPoint) -> Iterator[Choice]:
    """Yield what gives a rank other hashes of strings; its world needs fresh interpreters."""
    for seed in HASH_SEEDS:
        fault = faults.hash_seed(rank=passed.rank, seed=seed)
        yield Choice(LAST_TURN, Weight.HASH_SEED, "differs", fault, passed, "hashes")


def _calls(
    rank: int,
    points: Sequence[RecordedPoint],
    turn: int,
    decisions: Sequence[str],
    values: Sequence[str],
) -> Iterator[Choice]:
    """Yield what makes the functions that the user has named return something else.

    Args:
        rank: Whose calls.
        points: All points of the rank, in order.
        turn: The turn of the likeliest.
        decisions: Functions that return truth values.
        values: Functions that return numbers.
    """
    calls: dict[str, list[RecordedPoint]] = {}
    for each in points:
        if each.point.point == "call":
            calls.setdefault(each.point.name, []).append(each)
    wanted: list[tuple[str, tuple[object, ...]]] = [
        *((name, (True, False)) for name in decisions),
        *((name, (float("nan"),)) for name in values),
    ]
    for name, given in wanted:
        unseen = [RecordedPoint(rank, Point("call", name, nth), 0) for nth in (1, 2)]
        found = calls.get(name) or unseen
        for later, passed in dict.fromkeys([(0, found[0]), (1, found[-1])]):
            at = replace(passed.point, when="after")
            for value in given:
                fault = faults.returns(rank=rank, value=value, at=at)
                yield Choice(
                    turn + later, Weight.DECISION, "differs", fault, passed, ("call", name)
                )
