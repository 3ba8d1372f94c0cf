"""Defines a family of disturbances.

A new family is one `SweepFamily` in a module of its own, named in the list of `families`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import Choice, SweptRole, UndisturbedRun
from pytest_multihost.extensions.sweep.mendings import Mending, mending_of_kind
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun


def _nothing(_rank: int, _run: UndisturbedRun) -> Iterable[Fault]:
    return ()


def _nobody(_fault: Fault) -> Fault | None:
    return None


def _never(_one: object, _other: object) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFamily:
    """One kind of disturbance, with the functions that plan, count, skip and mend it.

    The functions are pure.

    Attributes:
        name: As in the list of families.
        plan: Gets ranks that pass the same points; yields faults for them, each at a point. A plan
            tries one point of each class, and the likeliest choices first.
        faults_at: Gets a point of the undisturbed run; yields all faults of the family for it.
            `plan` chooses among these faults. Reports compare the plan with their number at all
            points of all ranks. The number may depend on the rank, and on the kind, name, call and
            other name of the point.
        faults_of: Gets a rank; yields all faults of the family for it that are at no recorded
            point.
        mildness: If several disturbances show the same weakness, the report shows the one with the
            lowest number.
        mend: Gets a run that shows a weakness; returns the pattern that removes it, by default the
            pattern of the kind of fault.
        decided_by: Gets a fault; returns another fault whose run decides whether this one is
            needed, None if there is none. A sweep runs the other fault first.
        is_needless: Gets a fault and the run of the deciding fault; returns whether the fault would
            show nothing new.
        is_shown_by: Gets a disturbance and the run of another one of its class; returns whether
            that run already shows everything that this disturbance would show.
    """

    name: str
    plan: Callable[[SweptRole], Iterable[Choice]]
    faults_at: Callable[[RecordedPoint, UndisturbedRun], Iterable[Fault]]
    faults_of: Callable[[int, UndisturbedRun], Iterable[Fault]] = _nothing
    mildness: int
    mend: Callable[[DisturbedRun], Mending] = mending_of_kind
    decided_by: Callable[[Fault], Fault | None] = _nobody
    is_needless: Callable[[Fault, DisturbedRun], bool] = _never
    is_shown_by: Callable[[Disturbance, DisturbedRun], bool] = _never

    def count(self, run: UndisturbedRun) -> int:
        """Return the number of faults of the family for all ranks at all points of a run."""
        count = sum(len(tuple(self.faults_of(rank, run))) for rank in run.points)
        known: dict[tuple[object, ...], int] = {}
        for passed in run.of_the_test:
            point = passed.point
            key = passed.rank, point.point, point.name, point.call, passed.other
            if key not in known:
                known[key] = len(tuple(self.faults_at(passed, run)))
            count += known[key]
        return count
