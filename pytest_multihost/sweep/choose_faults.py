"""What to do to a rank at a point, and what of it is likely to show a weakness.

Faults have a turn and a weight: those of a lower turn are run first, of one turn those of a lower
weight. The weights follow from what published hangs were caused by: a file that one rank writes and
another looks for, a failure on the one rank that works between two operations, data that end early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from pytest_multihost import faults
from pytest_multihost.model.fault import START, Fault, Point
from pytest_multihost.model.sweep import Family
from pytest_multihost.sweep.classes import OTHERS_TURN, Pick
from pytest_multihost.sweep.roles import Site, site_of
from pytest_multihost.sweep.sharing import CHANGES, Sharing

LATE_S = 3.0
"""How late a rank is whose others may have a timeout of seconds, or poll a number of times."""

STALE_S = 2.0
"""How long files of others are hidden: longer than a test takes from the write to the look."""

HASH_SEEDS = (1, 2)
"""Of the rank that hashes otherwise: under one seed two texts often are in the order of another."""

SKEW_S = 7200.0
"""How far a clock is wrong: more than what jobs do by the hour."""

_WAITED_FOR_WITH_TIMEOUTS = ("monitored_barrier", "store.", "key_value_")
"""Operations whose callers often give them timeouts of seconds; of others it is half an hour."""

_LATER, _LAST = 2, OTHERS_TURN + 1
"""Turns of faults that are costly, or rarely show more than others do."""


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


@dataclass(frozen=True, slots=True)
class Choice:
    """A fault at a point, with its place in the order."""

    turn: int
    weight: int
    family: Family
    fault: Fault
    pick: Pick


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of the test when the faults at one point are chosen.

    Attributes:
        sharing: Which files several ranks use.
        is_everybody: Whether all ranks are of the point's role.
        last_span: The last span in which something is done before another operation; points
            after it are at the test's end, where nobody waits any more.
    """

    sharing: Sharing
    is_everybody: bool
    last_span: int


def choices_at(pick: Pick, family: Family, known: Surroundings) -> Iterator[Choice]:
    """Yield what a family of disturbances does to a rank at a point."""
    found = _FAMILIES[family](pick, known)
    for turn, weight, fault in found:
        yield Choice(pick.turn + turn, weight, family, fault, pick)


_Weighed = tuple[int, int, Fault]


def _late(pick: Pick, known: Surroundings) -> Iterator[_Weighed]:
    """Hold the rank; between two points of one class nothing changes for others but once.

    A call that no other rank can see only makes the next one late, which has a point of its own.
    """
    passed, point = pick.passed, pick.passed.point
    if pick.turn >= OTHERS_TURN:
        return
    held = hold(passed.rank, point)
    longer = hold(passed.rank, point, min_s=LATE_S)
    if point.point == "io" and known.sharing.is_shared(passed):
        changes = point.call in CHANGES
        weight = Weight.LATE_AT_SHARED_CHANGE if changes else Weight.LATE_AT_SHARED_LOOK
        yield 0, weight, held
        if changes or point.call == "open":
            yield _LATER, weight, longer
    elif point.point == "collective":
        yield 0, Weight.LATE_AT_OPERATION, held
        if point.name.startswith(_WAITED_FOR_WITH_TIMEOUTS):
            yield _LATER, Weight.LATE_AT_OPERATION, longer
    elif point.point == "sync_point":
        yield 0, Weight.LATE_AT_SYNC_POINT, held
    else:
        yield _LAST, Weight.LATE_ALONE, held


def hold(rank: int, point: Point, *, min_s: float = 0.0) -> Fault:
    """Return the fault that holds a rank until the others wait for it, or at least so long."""
    least = {"min_s": min_s} if min_s else {}
    return Fault("hold", (rank,), point, {"until": "others-wait", **least})


def _fails(pick: Pick, known: Surroundings) -> Iterator[_Weighed]:
    """Let a call on a file fail, once and from then on.

    Not the drawing of a batch: what it reads are files, and data in memory never fail.
    """
    passed, point = pick.passed, pick.passed.point
    if point.point == "io":
        weight = Weight.FAILS_EVERYWHERE if known.is_everybody else Weight.FAILS_ALONE
        if point.call in ("stat", "rmdir", "unlink"):  # often ignored, as meant
            weight = Weight.FAILS_LOOK
        if passed.span > known.last_span:
            weight = Weight.FAILS_AT_END
        onwards = replace(point, onwards=True)
        yield 0, weight, faults.fails(rank=passed.rank, at=point)
        yield 1, weight, faults.fails(rank=passed.rank, at=onwards)


def _differs(pick: Pick, known: Surroundings) -> Iterator[_Weighed]:
    """Let the rank see other files than the others do; see `choices_of_loader` for data."""
    passed, point = pick.passed, pick.passed.point
    if point.point != "io" or pick.turn >= OTHERS_TURN:
        return
    if point.call == "listdir":
        yield 0, Weight.ORDER, faults.shuffled_listing(rank=passed.rank, path=point.name)
    for path in known.sharing.made_by_others(passed):
        fault = faults.stale_files(rank=passed.rank, seconds=STALE_S, path=path)
        yield 0, Weight.STALE, fault


def _errors(pick: Pick, _known: Surroundings) -> Iterator[_Weighed]:
    rank, point = pick.passed.rank, pick.passed.point
    if point.point == "collective":
        yield 0, Weight.REQUESTED, faults.fails(rank=rank, at=point)
    elif point.point == "batch":
        message = "cannot read the data"
        fault = faults.raise_at(rank=rank, error=OSError, message=message, at=point)
        yield 0, Weight.REQUESTED, fault


def _killed(pick: Pick, _known: Surroundings) -> Iterator[_Weighed]:
    yield 0, Weight.REQUESTED, faults.kill(rank=pick.passed.rank, at=pick.passed.point)


_FAMILIES = {
    "late": _late,
    "fails": _fails,
    "differs": _differs,
    "errors": _errors,
    "killed": _killed,
}


# Disturbances of a whole rank rather than of one point of it


def choices_of_loaders(picks: Sequence[Pick]) -> Iterator[Choice]:
    """Yield what ends a rank's data early: one batch less, one batch only, none.

    Args:
        picks: One for each batch that a rank has drawn, in order; the end of data is drawn, too.
    """
    by_site: dict[Site, list[Pick]] = {}
    for each in picks:
        by_site.setdefault(site_of(each.passed), []).append(each)
    for drawn in by_site.values():
        first, last = drawn[0], drawn[-1]
        # The last draw finds the end, unless the program stops before.
        ends = [drawn[-2], last] if len(drawn) > 1 else [last]
        short = [
            (0, ends[0]),
            *((1, each) for each in ends[1:]),
            (1, drawn[min(1, len(drawn) - 1)]),
        ]
        for turn, pick in short:
            at = pick.passed.point
            fault = faults.short_data(rank=pick.passed.rank, at=at)
            yield Choice(pick.turn + turn, Weight.SHORT_DATA, "differs", fault, pick)
        fault = faults.empty_data(rank=first.passed.rank, at=first.passed.point)
        yield Choice(first.turn, Weight.SHORT_DATA, "differs", fault, first)


def choices_of_clock(picks: Sequence[Pick]) -> Iterator[Choice]:
    """Yield what makes a rank's wall clock wrong: from the middle on, from the start on.

    What the clock says at the start and at the end is compared; if it is wrong all the time, that
    cancels out.

    Args:
        picks: All points of a rank, in order.
    """
    middle = next((each for each in picks if each.passed.span > 0), picks[len(picks) // 2])
    rank = middle.passed.rank
    for turn, at, seconds in (
        (0, middle.passed.point, SKEW_S),
        (1, START, SKEW_S),
    ):
        fault = faults.clock_skew(rank=rank, seconds=seconds, at=at)
        yield Choice(middle.turn + turn, Weight.CLOCK, "differs", fault, middle)


def choices_of_hashes(pick: Pick) -> Iterator[Choice]:
    """Yield what gives a rank other hashes of strings; its world needs fresh interpreters."""
    for seed in HASH_SEEDS:
        fault = faults.hash_seed(rank=pick.passed.rank, seed=seed)
        yield Choice(_LAST, Weight.HASH_SEED, "differs", fault, pick)


def choices_of_calls(
    calls: Mapping[str, Sequence[Pick]], decisions: Sequence[str], values: Sequence[str]
) -> Iterator[Choice]:
    """Yield what makes the functions that the user has named return something else.

    Args:
        calls: The calls of each function by one rank, in order.
        decisions: Functions that return truth values.
        values: Functions that return numbers.
    """
    wanted: list[tuple[str, tuple[object, ...]]] = [
        *((name, (True, False)) for name in decisions),
        *((name, (float("nan"),)) for name in values),
    ]
    for name, given in wanted:
        picks = calls.get(name, ())
        for turn, pick in dict.fromkeys([(0, picks[0]), (1, picks[-1])] if picks else []):
            at = replace(pick.passed.point, when="after")
            for value in given:
                fault = faults.returns(rank=pick.passed.rank, value=value, at=at)
                yield Choice(pick.turn + turn, Weight.DECISION, "differs", fault, pick)
