"""Plan a sweep: which rank to disturb where and how, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from pytest_multihost.model.fault import ErrorPath
from pytest_multihost.model.spec import DEFAULT_FAMILIES, Family
from pytest_multihost.model.sweep import (
    WEAK,
    Disturbance,
    DisturbedRun,
    RecordedPoint,
    SweepPlan,
)
from pytest_multihost.sweep.choices import (
    Choice,
    Role,
    choices_of_differences,
    choices_of_failures,
    choices_of_hashes,
    choices_on_request,
)
from pytest_multihost.sweep.classes import Records, is_of_the_test, roles_of
from pytest_multihost.sweep.lateness import choices_of_lateness
from pytest_multihost.sweep.sharing import Sharing, lock_holders_of, order_of, sharing_of

# How many runs it takes to disturb everything: what a plan is measured by.


def count_all(
    points: Records,
    families: Iterable[Family],
    sharing: Sharing,
    decisions: Sequence[str],
    values: Sequence[str],
) -> int:
    """Return how many runs it takes to disturb all ranks at all points in all ways.

    That is at each point: to hold the rank until the others wait, and for some seconds at least; to
    let a call on a file fail once, and from then on; other listings, hidden files, less data and
    none, another clock, another result of what the user has named; on request an error, and death.
    And other hashes of each rank.
    """
    passed = [each for found in points.values() for each in found if is_of_the_test(each)]
    wanted = frozenset(families)
    count = len(points) if "differs" in wanted else 0  # hashes
    for each in passed:
        kind, name = each.point.point, each.point.name
        count += 2 * ("late" in wanted) + ("killed" in wanted)
        count += 2 * (kind == "io" and "fails" in wanted)
        count += kind in ("batch", "collective") and "errors" in wanted
        if "differs" in wanted:
            count += 1 + 2 * (kind == "batch")  # clocks, data
            count += 2 * (name in decisions) + (name in values) if kind == "call" else 0
            count += each.point.call == "listdir"
            count += len([*sharing.made_by_others(each)]) if kind == "io" else 0
    return count


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
    roles = roles_of(points, size)
    sharing = sharing_of(points, order_of(points, size))
    chosen: list[tuple[Choice, tuple[int, ...]]] = []
    for ranks in roles:
        role = Role.of(ranks, points, size, sharing)
        for family in families:
            if family == "late":
                found = choices_of_lateness(role)
            elif family == "fails":
                found = choices_of_failures(role)
            elif family == "differs":
                found = choices_of_differences(role, decisions, values)
            else:
                found = choices_on_request(role, family)
            chosen += [(each, ranks) for each in found]
    if "differs" in families:
        last = next((e for e in reversed(points.get(roles[-1][0], ())) if is_of_the_test(e)), None)
        hashes = choices_of_hashes(last) if last is not None else ()
        chosen += [(each, roles[-1]) for each in hashes]
    chosen.sort(key=lambda each: (each[0].turn, each[0].weight))
    holders = lock_holders_of(points, size)
    chosen = [
        (replace(each, fault=holders.of_any(each.fault, each.passed)), role)
        for each, role in chosen
    ]
    return SweepPlan(
        roles=roles,
        point_count=sum(map(len, points.values())),
        disturbances=tuple(islice(_without_repeats(chosen), MAX_DISTURBANCES)),
        brute_force=count_all(points, families, sharing, decisions, values),
    )


def _without_repeats(
    chosen: Iterable[tuple[Choice, tuple[int, ...]]],
) -> Iterator[Disturbance]:
    """Yield disturbances, each fault once: some points of a class name the same fault."""
    seen = set[str]()
    numbers: dict[Hashable, int] = {}
    for choice, role in chosen:
        number = numbers.setdefault((role, choice.family, choice.class_), len(numbers))
        name = repr(choice.fault)
        if name not in seen:
            seen.add(name)
            yield Disturbance(
                choice.family, choice.fault, role, choice.passed, number, choice.alike
            )


# While it runs


def order_rest(
    rest: Sequence[Disturbance],
    runs: Sequence[DisturbedRun],
    running: Sequence[Disturbance] = (),
) -> tuple[Disturbance, ...]:
    """Return the disturbances that are left, without those that would show again what is known.

    Left out is what is of a class that has shown a weakness, and what another run has shown to be
    needless (see `_decided_by`), or may show to be: it is running. What is at a line that has shown
    a weakness is run last.

    Args:
        rest: What has not been run, in the plan's order.
        runs: What has been run.
        running: What is running.
    """
    weak = [each.disturbance for each in runs if each.outcome in WEAK]
    closed = {_class(each) for each in (*weak, *running)}  # has shown one, or may be about to
    deciding = {_named(each) for each in running}
    lines = Counter(map(_line, weak))
    by_fault = {_named(each.disturbance): each for each in runs}
    told = _told_ways(runs)
    useful = [
        each
        for each in rest
        if not (
            _class(each) in closed
            or _decided_by(each) in deciding
            or _is_told(each, told)
            or _is_needless(each, by_fault)
        )
    ]
    return tuple(sorted(useful, key=lambda each: lines[_line(each)]))


_Named = tuple[object, ...]


def _decided_by(disturbance: Disturbance) -> _Named | None:
    """Return the disturbance whose result says whether this one is needed; None if none does.

    * A call that fails from then on: the same that fails once. If the rank has not survived that,
      or never came to the point again, there is nothing more to fail.
    * A rank that is held for seconds: the same that is held until the others wait. If none of them
      polled or had a timeout of seconds, no more happens in that time.
    * A rank that is held at one collective: the same at all of them, as long as that is survived.
    """
    fault = disturbance.fault
    if disturbance.family == "hazards":
        return None
    if fault.kind == "fails" and fault.at.onwards:
        return _named(
            replace(disturbance, fault=replace(fault, at=replace(fault.at, onwards=False)))
        )
    if fault.kind == "hold" and "min_s" in fault.params:
        params = {key: value for key, value in fault.params.items() if key != "min_s"}
        return _named(replace(disturbance, fault=replace(fault, params=params)))
    if fault.kind == "hold" and fault.at.point == "collective" and not fault.at.onwards:
        at = replace(fault.at, name="", nth=1, call="", onwards=True)
        return _named(replace(disturbance, fault=replace(fault, at=at)))
    return None


def _told_ways(runs: Iterable[DisturbedRun]) -> Mapping[_Named, set[ErrorPath]]:
    """Return the ways of the failures that all ranks were seen to hear of, by class."""
    ways: dict[_Named, set[ErrorPath]] = {}
    for each in runs:
        if each.outcome == "told" and each.disturbance.family == "fails":
            disturbance = each.disturbance
            ways.setdefault(_class(disturbance), set()).add(disturbance.passed.error_path)
    return ways


def _is_told(disturbance: Disturbance, told: Mapping[_Named, set[ErrorPath]]) -> bool:
    """Return whether all ranks were seen to hear of a failure that takes the same way.

    What differs between such failures is the function of a library that handles it first: one that
    was heard of was not swallowed, and then they are the same.
    """
    if disturbance.family != "fails":
        return False
    return bool(told.get(_class(disturbance), set()) - {disturbance.passed.error_path})


def _is_needless(disturbance: Disturbance, runs: Mapping[_Named, DisturbedRun]) -> bool:
    """Return whether other runs have shown that a disturbance would show nothing."""
    decider = _decided_by(disturbance)
    run = runs.get(decider) if decider is not None else None
    if run is None:
        return False
    fault = disturbance.fault
    if fault.kind == "fails" and fault.at.onwards:
        return run.outcome in {*WEAK, "told"} or run.again is False
    if "min_s" in fault.params:
        return run.is_pressed is False
    return run.outcome == "survived"


def _named(disturbance: Disturbance) -> _Named:
    fault = disturbance.fault
    return fault.kind, fault.ranks, fault.at, tuple(sorted(fault.params.items()))


def _class(disturbance: Disturbance) -> tuple[object, ...]:
    """Return what is equal for disturbances of one class; each hazard is one of its own."""
    if disturbance.family == "hazards":
        return _named(disturbance)
    return disturbance.family, disturbance.role, disturbance.class_


def _line(disturbance: Disturbance) -> tuple[object, ...]:
    """Return what is equal for what is done at one line, of one kind."""
    passed = disturbance.passed
    where = passed.where
    line = (where.file, where.line) if where is not None else passed.point.name
    return disturbance.family, disturbance.role, line
