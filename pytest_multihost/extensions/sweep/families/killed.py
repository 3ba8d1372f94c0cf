"""The family `killed`: the process of a rank is killed at a point."""

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
    return choices_at_ends(role, lambda _: True, _killed, Weight.REQUESTED)


def _faults_at(passed: RecordedPoint, _run: UndisturbedRun) -> Iterator[Fault]:
    yield _killed(passed)


def _killed(passed: RecordedPoint) -> Fault:
    return faults.kill(rank=passed.rank, at=passed.point)


FAMILY = SweepFamily(
    name="killed",
    plan=_plan,
    faults_at=_faults_at,
    mildness=5,
)
