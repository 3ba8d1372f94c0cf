"""Plan a sweep: which rank to disturb where and how, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import Choice, Role, UndisturbedRun
from pytest_multihost.extensions.sweep.families import DEFAULT_FAMILIES, FAMILIES
from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.result import WEAK, Disturbance, DisturbedRun, SweepPlan
from pytest_multihost.extensions.sweep.sharing import lock_holders_of

MAX_DISTURBANCES = 10_000
"""More than a sweep can run; of what is beyond, nothing is planned."""


def plan_sweep(
    points: Mapping[int, tuple[RecordedPoint, ...]],
    families: Collection[str] = DEFAULT_FAMILIES,
    *,
    size: int,
    decisions: Sequence[str] = (),
    values: Sequence[str] = (),
) -> SweepPlan:
    """Plan the sweep of a test.

    Args:
        points: The points that each rank passed in the undisturbed run, in order.
        families: The names of the families to plan.
        size: Ranks of the world.
        decisions: Functions, as ``module:function``, that return another truth value on one rank.
        values: Functions whose numbers become NaN on one rank.

    Returns:
        The plan; its disturbances are in the order in which they are to be run.
    """
    run = UndisturbedRun.of(points, size, decisions, values)
    wanted = [FAMILIES[name].load() for name in families]
    chosen = [
        _Chosen(choice, ranks, family)
        for ranks in run.roles
        for role in [Role.of(ranks, run)]
        for family in wanted
        for choice in family.plan(role)
    ]
    chosen.sort(key=lambda each: (each.choice.turn, each.choice.weight))
    return SweepPlan(
        roles=run.roles,
        point_count=sum(map(len, points.values())),
        disturbances=tuple(islice(_disturbances(chosen, run), MAX_DISTURBANCES)),
        brute_force=sum(family.count(run) for family in wanted),
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A choice of a family for a role."""

    choice: Choice
    role: tuple[int, ...]
    family: SweepFamily


def _disturbances(chosen: Iterable[_Chosen], run: UndisturbedRun) -> Iterator[Disturbance]:
    """Yield disturbances, each fault once: some points of a class name the same fault."""
    holders = lock_holders_of(run.points, run.size)
    seen = set[str]()
    numbers: dict[Hashable, int] = {}
    for each in chosen:
        choice, family = each.choice, each.family.name
        number = numbers.setdefault((each.role, family, choice.class_), len(numbers))
        fault = holders.of_any(choice.fault, choice.passed)
        if repr(fault) not in seen:
            seen.add(repr(fault))
            yield Disturbance(family, fault, each.role, choice.passed, number, choice.alike)


# While it runs


def order_rest(
    rest: Sequence[Disturbance],
    runs: Sequence[DisturbedRun],
    running: Sequence[Disturbance] = (),
) -> tuple[Disturbance, ...]:
    """Return the disturbances that are left, without those that would show again what is known.

    Skips a disturbance if its class has shown a weakness, or if a finished or running run makes it
    redundant. What is at a line that has shown a weakness is run last.

    Args:
        rest: What has not been run, in the plan's order.
        runs: What has been run.
        running: What is running.
    """
    weak = [each.disturbance for each in runs if each.outcome in WEAK]
    known = _Known(runs, running)
    lines = Counter(map(_line, weak))
    useful = [each for each in rest if known.leaves_open(each)]
    return tuple(sorted(useful, key=lambda each: lines[_line(each)]))


_FaultKey = tuple[object, ...]


@dataclass(frozen=True)
class _Known:
    """What is known from the runs of a sweep, finished and running."""

    runs: Sequence[DisturbedRun]
    running: Sequence[Disturbance]

    def leaves_open(self, disturbance: Disturbance) -> bool:
        """Return whether a disturbance may show something new."""
        family, fault = FAMILIES[disturbance.family].load(), disturbance.fault
        if _class(disturbance) in self._closed:
            return False
        if any(family.is_shown_by(disturbance, run) for run in self._by_class(disturbance)):
            return False
        decider = family.decided_by(fault)
        if decider is None:
            return True
        run = self._by_fault.get(_key(decider))
        is_needless = run is not None and family.is_needless(fault, run)
        return not is_needless and _key(decider) not in self._deciding

    @cached_property
    def _closed(self) -> set[Hashable]:
        """The classes that have shown a weakness, or may be about to."""
        weak = [each.disturbance for each in self.runs if each.outcome in WEAK]
        return {_class(each) for each in (*weak, *self.running)}

    @cached_property
    def _deciding(self) -> set[_FaultKey]:
        return {_key(each.fault) for each in self.running}

    @cached_property
    def _by_fault(self) -> Mapping[_FaultKey, DisturbedRun]:
        return {_key(each.disturbance.fault): each for each in self.runs}

    @cached_property
    def _runs_of(self) -> Mapping[Hashable, Sequence[DisturbedRun]]:
        return group_by_value((_class(each.disturbance), each) for each in self.runs)

    def _by_class(self, disturbance: Disturbance) -> Sequence[DisturbedRun]:
        return self._runs_of.get(_class(disturbance), ())


def _key(fault: Fault) -> _FaultKey:
    return fault.kind, fault.ranks, fault.at, tuple(sorted(fault.params.items()))


def _class(disturbance: Disturbance) -> Hashable:
    """Return what is equal for disturbances of one class."""
    return disturbance.family, disturbance.role, disturbance.class_


def _line(disturbance: Disturbance) -> Hashable:
    """Return what is equal for what is done at one line, of one kind."""
    passed = disturbance.passed
    where = passed.where
    line = (where.file, where.line) if where is not None else passed.point.name
    return disturbance.family, disturbance.role, line
