"""Plan a sweep: which rank to disturb where and how, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from pytest_multihost.model.fault import Point
from pytest_multihost.model.sweep import (
    DEFAULT_FAMILIES,
    WEAK,
    Disturbance,
    DisturbedRun,
    Family,
    RecordedPoint,
    SweepPlan,
)
from pytest_multihost.sweep.choose_faults import (
    Choice,
    Surroundings,
    choices_at,
    choices_of_calls,
    choices_of_clock,
    choices_of_hashes,
    choices_of_loaders,
)
from pytest_multihost.sweep.classes import (
    Pick,
    PointClass,
    classes_of,
    is_of_the_test,
    picks_of_site,
)
from pytest_multihost.sweep.lock_files import lock_holders_of
from pytest_multihost.sweep.roles import Records, Site, roles_of
from pytest_multihost.sweep.sharing import Sharing, sharing_of

MAX_DISTURBANCES = 10_000
"""More than a sweep can run; of what is beyond, nothing is planned."""


def plan_sweep(
    points: Mapping[int, tuple[RecordedPoint, ...]],
    families: Collection[Family] = DEFAULT_FAMILIES,
    *,
    size: int,
    decisions: Sequence[str] = (),
    values: Sequence[str] = (),
) -> SweepPlan:
    """Plan the sweep of a test.

    Args:
        points: The points that each rank passed in the undisturbed run, in order.
        families: Which kinds of disturbances are wanted.
        size: Ranks of the world.
        decisions: Functions, as ``module:function``, that return another truth value on one rank.
        values: Functions whose numbers become NaN on one rank.

    Returns:
        The plan; its disturbances are in the order in which they are to be run.
    """
    roles, sharing = roles_of(points, size), sharing_of(points)
    classes = classes_of(points, roles)
    chosen: list[tuple[Choice, tuple[int, ...]]] = []
    for role in roles:
        mine = [each for each in classes if each.role == role]
        known = Surroundings(sharing, len(role) == size, _last_span(points, role[0]))
        found = _at_points(mine, families, known)
        chosen += [(each, role) for each in found]
        if "differs" in families:
            ranks = dict.fromkeys((role[-1], role[0]))  # who compares may not be who decides
            for turn, rank in enumerate(ranks):
                whole = _of_rank(rank, turn, mine, decisions, values)
                chosen += [(each, role) for each in whole]
    if "differs" in families and classes:
        last = classes[-1]
        hashes = choices_of_hashes(Pick(0, last.points_of_last[-1], last.number))
        chosen += [(each, last.role) for each in hashes]
    chosen.sort(key=lambda each: (each[0].turn, each[0].weight))
    holders = lock_holders_of(points, size)
    chosen = [
        (replace(each, fault=holders.of_any(each.fault, each.pick.passed)), role)
        for each, role in chosen
    ]
    return SweepPlan(
        roles=roles,
        point_count=sum(map(len, points.values())),
        disturbances=tuple(islice(_without_repeats(chosen), MAX_DISTURBANCES)),
        brute_force=_brute_force(points, families, sharing, decisions, values),
    )


def _at_points(
    classes: Iterable[PointClass], families: Collection[Family], known: Surroundings
) -> Iterator[Choice]:
    by_site: dict[Site, list[PointClass]] = {}
    for each in classes:
        by_site.setdefault(each.site, []).append(each)
    for same in by_site.values():
        for pick in picks_of_site(same):
            for family in families:
                yield from choices_at(pick, family, known)


def _of_rank(
    rank: int,
    turn: int,
    classes: Sequence[PointClass],
    decisions: Sequence[str],
    values: Sequence[str],
) -> Iterator[Choice]:
    """Yield what a rank sees otherwise that is not bound to one point of it."""
    picks = [
        Pick(turn, passed, each.number)
        for each in classes
        for passed in (each.points if turn else each.points_of_last)
        if passed.rank == rank
    ]
    if picks:
        yield from choices_of_clock(picks)
    yield from choices_of_loaders([each for each in picks if each.passed.point.point == "batch"])
    calls: dict[str, list[Pick]] = {}
    for each in picks:
        if each.passed.point.point == "call":
            calls.setdefault(each.passed.point.name, []).append(each)
    number = classes[-1].number if classes else 0
    for name in (*decisions, *values):  # calls are not recorded: the first two are disturbed
        unseen = (RecordedPoint(rank, Point("call", name, nth), 0) for nth in (1, 2))
        calls.setdefault(name, [Pick(turn, each, number) for each in unseen])
    yield from choices_of_calls(calls, decisions, values)


def _last_span(points: Records, rank: int) -> int:
    """Return the last span of a rank that an operation ends."""
    operations = sum(each.point.point == "collective" for each in points.get(rank, ()))
    return operations - 1


def _without_repeats(
    chosen: Iterable[tuple[Choice, tuple[int, ...]]],
) -> Iterator[Disturbance]:
    """Yield disturbances, each fault once: some points of a class name the same fault."""
    seen = set[str]()
    for choice, role in chosen:
        name = repr(choice.fault)
        if name not in seen:
            seen.add(name)
            pick = choice.pick
            yield Disturbance(choice.family, choice.fault, role, pick.passed, pick.class_)


def _brute_force(
    points: Records,
    families: Collection[Family],
    sharing: Sharing,
    decisions: Sequence[str],
    values: Sequence[str],
) -> int:
    """Return how many runs all points of all ranks with all faults would take."""
    known = Surroundings(sharing, is_everybody=False, last_span=0)
    picks = [
        Pick(0, each, 0) for passed in points.values() for each in passed if is_of_the_test(each)
    ]
    wanted = [each for each in families if each != "late"]
    count = sum(1 for pick in picks for family in wanted for _ in choices_at(pick, family, known))
    if "late" in families:
        count += len(_HOLDS) * len(picks)
    if "differs" in families:
        batches = sum(pick.passed.point.point == "batch" for pick in picks)
        named = len(points) * (2 * len(decisions) + len(values))
        count += 2 * batches + len(picks) + named + len(points)  # data, clocks, calls, hashes
    return count


_HOLDS = ("until the others wait", "for some seconds at least")


def order_rest(
    rest: Sequence[Disturbance], runs: Sequence[DisturbedRun]
) -> tuple[Disturbance, ...]:
    """Return the disturbances that are left, without those that would show again what is known.

    Left out are a call that fails onwards if its failing once was not survived, and what is like
    disturbances that have shown one weakness twice. What is like one that has is run last.

    Args:
        rest: What has not been run, in the plan's order.
        runs: What has been run.
    """
    failed = {_once(each.disturbance) for each in runs if each.outcome in {*WEAK, "told"}}
    weak = Counter(
        _likeness(run.disturbance)
        for run in runs
        if run.outcome in WEAK and run.disturbance.family in _SHOWN_ALIKE
    )
    useful = [
        each
        for each in rest
        if not (each.fault.at.onwards and _once(each) in failed) and weak[_likeness(each)] < _ENOUGH
    ]
    return tuple(sorted(useful, key=lambda each: weak[_likeness(each)]))


_ENOUGH = 2
"""How often disturbances that are alike show a weakness before no more of them are run."""

_SHOWN_ALIKE = frozenset({"fails", "late"})
"""Families of which disturbances at one line are alike."""


def _likeness(disturbance: Disturbance) -> tuple[object, ...]:
    """Return what is equal for disturbances that likely show the same weakness.

    For what fails: the line, whatever the call. For a rank that is late, the call matters, too:
    before a file is made and after it are two different things.
    """
    passed, family = disturbance.passed, disturbance.family
    call = passed.point.call if family != "fails" else ""
    where = passed.where
    line = (where.file, where.line) if where is not None else passed.point.name
    return family, disturbance.fault.kind, disturbance.role, line, call, passed.span


def _once(disturbance: Disturbance) -> tuple[object, ...]:
    point = disturbance.fault.at
    return disturbance.fault.kind, disturbance.fault.ranks, point.name, point.call, point.nth
