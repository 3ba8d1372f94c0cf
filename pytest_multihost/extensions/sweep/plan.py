"""Plans a sweep: the faults, their ranks and points, and their order."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import Choice, SweptRole, UndisturbedRun, Weight
from pytest_multihost.extensions.sweep.families import DEFAULT_FAMILIES, FAMILIES
from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.local_decisions.decisions import (
    NO_DECISIONS,
    LocalDecisions,
)
from pytest_multihost.extensions.sweep.lock_holders import lock_holders_of
from pytest_multihost.extensions.sweep.result import Disturbance, SweepPlan

MAX_DISTURBANCES = 10_000
"""The maximum of planned disturbances, more than a sweep can run."""


def plan_sweep(
    points: Mapping[int, tuple[RecordedPoint, ...]],
    families: Collection[str] = DEFAULT_FAMILIES,
    *,
    size: int,
    decisions: Sequence[str] = (),
    values: Sequence[str] = (),
    local: LocalDecisions = NO_DECISIONS,
    has_values: bool = False,
    has_hashes: bool = True,
) -> SweepPlan:
    """Plan the sweep of a test.

    Args:
        points: The points that each rank passed in the undisturbed run, in order.
        families: The names of the families to plan.
        decisions: Functions, as ``module:function``, that return another truth value on one rank.
        values: Functions whose numbers become NaN on one rank.
        local: The decisions that ranks take from data that they alone see.
        has_values: Whether ranks have stated values that all are to have.
        has_hashes: Whether the test's code may depend on hashes of strings.

    Returns:
        The plan, with the disturbances in the order of their runs.
    """
    run = UndisturbedRun.of(
        points,
        size,
        decisions,
        values,
        local,
        has_values=has_values,
        has_hashes=has_hashes,
    )
    wanted = [FAMILIES[name].load() for name in families]
    chosen = [
        _Chosen(choice, ranks, family)
        for ranks in run.roles
        for role in [SweptRole.of(ranks, run)]
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
    """Yield disturbances, each fault once, because several points may have the same fault."""
    holders = lock_holders_of(run.points, run.size)
    seen = set[str]()
    numbers: dict[Hashable, int] = {}
    for each in chosen:
        choice, family = each.choice, each.family.name
        number = numbers.setdefault((each.role, family, choice.class_), len(numbers))
        fault = holders.of_any(choice.fault, choice.passed)
        if repr(fault) not in seen:
            seen.add(repr(fault))
            yield Disturbance(
                family=family,
                fault=fault,
                role=each.role,
                passed=choice.passed,
                class_=number,
                alike=choice.alike,
                choice=Weight(choice.weight).name.lower(),
                turn=choice.turn,
            )
