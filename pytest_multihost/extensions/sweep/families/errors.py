"""The family `errors`: an operation raises its own error, or a data loader cannot read."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost import faults
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import (
    Choice,
    Role,
    UndisturbedRun,
    Weight,
    choices_at_ends,
)
from pytest_multihost.extensions.sweep.families.family import SweepFamily


def _plan(role: Role) -> Iterator[Choice]:
    return choices_at_ends(role, _can_raise, _raises, Weight.REQUESTED)


def _faults_at(passed: RecordedPoint, _run: UndisturbedRun) -> Iterator[Fault]:
    if _can_raise(passed):
        yield _raises(passed)


def _can_raise(passed: RecordedPoint) -> bool:
    return passed.point.point in ("batch", "collective")


def _raises(passed: RecordedPoint) -> Fault:
    rank, point = passed.rank, passed.point
    if point.point == "batch":
        message = "cannot read the data"
        return faults.raise_at(rank=rank, error=OSError, message=message, at=point)
    return faults.fails(rank=rank, at=point)


FAMILY = SweepFamily(
    name="errors",
    plan=_plan,
    faults_at=_faults_at,
    mildness=4,
)
