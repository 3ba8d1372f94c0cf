"""The family `differs`: a rank sees data that differ from the other ranks' data.

These are files, batches, clocks, hashes, and results of functions: of functions that the user
named, and of functions that depend on data of one rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_multihost import faults
from pytest_multihost.core.model.fault import START, Fault, Point
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import (
    LAST_TURN,
    LATER_TURN,
    Choice,
    SweptRole,
    UndisturbedRun,
    Weight,
)
from pytest_multihost.extensions.sweep.classes import Site, site_of
from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.local_decisions.choices import local_choices, local_faults
from pytest_multihost.extensions.sweep.sharing import Sharing

STALE_S = 2.0
"""How long other ranks' files are hidden: longer than a test takes from a write to a look."""

HASH_SEEDS = (1, 2)
"""The seeds for the disturbed rank. With only one, two texts often have the others' order."""

SKEW_S = 90_000.0
"""How far a clock is wrong: a day and an hour, so names after the day and after the hour differ."""


def _plan(role: SweptRole) -> Iterator[Choice]:
    """Yield the choices for a role.

    A hash seed needs fresh interpreters, which take longer than all other disturbances of a small
    test. So only one rank of the world gets one, and only if the test's code makes sets.
    """
    for turn, rank in enumerate(role.disturbed):
        points = role.of_rank(rank)
        yield from _other_files(points, turn, role.run.sharing)
        if points:
            yield from _clocks(points, turn)
        yield from _data([each for each in points if each.point.point == "batch"], turn)
        yield from _calls(rank, points, turn, role.run)
        yield from local_choices(rank, turn, role.run)
    rank = role.ranks[0]
    own = role.of_rank(rank)
    if role.run.has_values and not own:  # collectives that C++ launches are not points
        own = [RecordedPoint(rank, START, 0)]
    if own and role.run.has_hashes and role.ranks == role.run.roles[-1]:
        for fault in _hashes(rank):
            yield Choice(LAST_TURN + 1, Weight.HASH_SEED, fault, own[-1], "hashes")


def _faults_at(passed: RecordedPoint, run: UndisturbedRun) -> Iterator[Fault]:
    yield _skewed(passed.rank, passed.point)
    if passed.point.point == "batch":
        yield from (_short(passed), _empty(passed))
    if passed.point.point == "call":
        for name, results in _results(run):
            yield from _returns(passed, results if name == passed.point.name else ())
    if passed.point.point == "io":
        yield from _views(passed, run.sharing)


def _faults_of(rank: int, run: UndisturbedRun) -> Iterator[Fault]:
    yield _skewed(rank, START)
    yield from _hashes(rank)
    yield from local_faults(rank, run)


def _other_files(points: Sequence[RecordedPoint], turn: int, sharing: Sharing) -> Iterator[Choice]:
    """Yield different views of the first and the last file that each line uses.

    Args:
        points: All points of a rank, in order.
        turn: The turn of the likeliest choice.
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
                yield Choice(turn + later, weight, fault, passed, (kind, site))


def _views(passed: RecordedPoint, sharing: Sharing) -> Iterator[Fault]:
    """Yield different views of files for a call: a listing in another order, or a missing file."""
    rank, path = passed.rank, passed.point.name
    if passed.point.call == "listdir" and not sharing.has_one_order(path):
        yield faults.shuffled_listing(rank=rank, path=path)
    for hidden in sharing.made_by_others(passed):
        yield faults.stale_files(rank=rank, seconds=STALE_S, path=hidden)


def _data(draws: Sequence[RecordedPoint], turn: int) -> Iterator[Choice]:
    """Yield faults that end a rank's data early: one batch less, one batch only, no batch.

    Args:
        draws: All batches that a rank drew, in order, including the draw that finds the end.
        turn: The turn of the likeliest choice.
    """
    by_site: dict[Site, list[RecordedPoint]] = {}
    for each in draws:
        by_site.setdefault(site_of(each), []).append(each)
    for site, drawn in by_site.items():
        first, last = drawn[0], drawn[-1]
        # The last draw finds the end, unless the program stops earlier.
        ends = [drawn[-2], last] if len(drawn) > 1 else [last]
        short = [(0, ends[0]), (LATER_TURN, drawn[min(1, len(drawn) - 1)])]
        short += [(LATER_TURN, each) for each in ends[1:]]
        for later, passed in short:
            key = ("data", site)
            yield Choice(turn + later, Weight.SHORT_DATA, _short(passed), passed, key)
        yield Choice(turn, Weight.SHORT_DATA, _empty(first), first, ("data", site))


def _short(passed: RecordedPoint) -> Fault:
    return faults.short_data(rank=passed.rank, at=passed.point)


def _empty(passed: RecordedPoint) -> Fault:
    return faults.empty_data(rank=passed.rank, at=passed.point)


def _clocks(points: Sequence[RecordedPoint], turn: int) -> Iterator[Choice]:
    """Yield faults that make a rank's wall clock wrong: from the middle on, and from the start on.

    The middle comes first: programs compare times of the start and the end, and a constant error
    cancels out.

    Args:
        points: All points of a rank, in order.
        turn: The turn of the likeliest choice.
    """
    middle = next((each for each in points if each.span > 0), points[len(points) // 2])
    for later, at in ((0, middle.point), (1, START)):
        yield Choice(turn + later, Weight.CLOCK, _skewed(middle.rank, at), middle, "clock")


def _skewed(rank: int, at: Point) -> Fault:
    return faults.clock_skew(rank=rank, seconds=SKEW_S, at=at)


def _hashes(rank: int) -> Iterator[Fault]:
    """Yield faults that change a rank's hashes of strings; its world needs fresh interpreters."""
    for seed in HASH_SEEDS:
        yield faults.hash_seed(rank=rank, seed=seed)


def _calls(
    rank: int, points: Sequence[RecordedPoint], turn: int, run: UndisturbedRun
) -> Iterator[Choice]:
    """Yield faults that change the results of the functions that the user named.

    Args:
        points: All points of the rank, in order.
        turn: The turn of the likeliest choice.
    """
    calls: dict[str, list[RecordedPoint]] = {}
    for each in points:
        if each.point.point == "call":
            calls.setdefault(each.point.name, []).append(each)
    for name, results in _results(run):
        unseen = [RecordedPoint(rank, Point("call", name, nth), 0) for nth in (1, 2)]
        found = calls.get(name) or unseen
        for later, passed in dict.fromkeys([(0, found[0]), (1, found[-1])]):
            for fault in _returns(passed, results):
                yield Choice(turn + later, Weight.DECISION, fault, passed, ("call", name))


def _results(run: UndisturbedRun) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the functions that the user named, each with the results to return instead."""
    yield from ((name, (True, False)) for name in run.decisions)
    yield from ((name, (float("nan"),)) for name in run.values)


def _returns(passed: RecordedPoint, results: Sequence[object]) -> Iterator[Fault]:
    at = replace(passed.point, when="after")
    for value in results:
        yield faults.returns(rank=passed.rank, value=value, at=at)


FAMILY = SweepFamily(
    name="differs",
    plan=_plan,
    faults_at=_faults_at,
    faults_of=_faults_of,
    mildness=1,
)
