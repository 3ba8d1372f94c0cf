"""What a family of disturbances is.

`SweepFamily` is complete: to add a family is to write one in a module of its own, and to name it in
the list of `families`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import Choice, Role, UndisturbedRun
from pytest_multihost.extensions.sweep.mendings import Mending, mending_of_kind
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun


def _nothing(_rank: int) -> Iterable[Fault]:
    return ()


def _nobody(_fault: Fault) -> Fault | None:
    return None


def _never(_one: object, _other: object) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFamily:
    """One kind of disturbance: what is planned and counted of it, and what a report says.

    The functions are pure.

    Attributes:
        name: As in the list of families.
        plan: Gets ranks that pass the same points; yields what is done to them, and where. A plan
            tries one point of each class of alike ones, and the likeliest first.
        faults_at: Gets a point of the undisturbed run; yields all faults that the family knows for
            it. `plan` chooses among these, and their number at all points of all ranks is what the
            plan saves, so they must be what `plan` takes. Their number may depend on the rank, and
            on the kind, name, call and other name of the point.
        faults_of: The same for faults of a rank that are at no point.
        mildness: Of several disturbances that show the same weakness the report shows the one of
            the lowest number.
        mend: Gets a run that shows a weakness; returns the pattern that removes it, by default that
            of the kind of fault.
        decided_by: Gets a fault; returns another one of which the result says whether this one is
            needed at all, None if there is none. A sweep runs that one first.
        is_needless: Gets a fault and the run with the fault that decides; returns whether to run it
            would show nothing new.
        is_shown_by: Gets a disturbance and the run of another one of its class; returns whether
            that has shown all that this one would.
    """

    name: str
    plan: Callable[[Role], Iterable[Choice]]
    faults_at: Callable[[RecordedPoint, UndisturbedRun], Iterable[Fault]]
    faults_of: Callable[[int], Iterable[Fault]] = _nothing
    mildness: int
    mend: Callable[[DisturbedRun], Mending] = mending_of_kind
    decided_by: Callable[[Fault], Fault | None] = _nobody
    is_needless: Callable[[Fault, DisturbedRun], bool] = _never
    is_shown_by: Callable[[Disturbance, DisturbedRun], bool] = _never

    def count(self, run: UndisturbedRun) -> int:
        """Return how many faults the family knows for all ranks at all points of a run."""
        count = sum(len(tuple(self.faults_of(rank))) for rank in run.points)
        known: dict[tuple[object, ...], int] = {}
        for passed in run.of_the_test:
            point = passed.point
            key = passed.rank, point.point, point.name, point.call, passed.other
            if key not in known:
                known[key] = len(tuple(self.faults_at(passed, run)))
            count += known[key]
        return count
