"""Plan a sweep: which rank to disturb where and how, in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pytest_multihost.model.sweep import (
    DEFAULT_FAMILIES,
    Disturbance,
    DisturbedRun,
    Family,
    RecordedPoint,
    SweepPlan,
)


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
    raise NotImplementedError


def order_rest(
    rest: Sequence[Disturbance], runs: Sequence[DisturbedRun]
) -> tuple[Disturbance, ...]:
    """Return the disturbances that are left, those last that would show again what is known.

    Args:
        rest: What has not been run, in the plan's order.
        runs: What has been run.
    """
    raise NotImplementedError
