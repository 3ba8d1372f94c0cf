"""The family `hazards`: a sweep tries the hangs that other extensions suspect.

Its disturbances do not come from points. Other extensions suggest the faults with the hook
`pytest_multihost_suspects`, and a sweep runs them before all others.
"""

from __future__ import annotations

from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.mendings import LAUNCH_IN_ONE_ORDER, Mending, mending_of_kind
from pytest_multihost.extensions.sweep.result import DisturbedRun


def _mend(run: DisturbedRun) -> Mending:
    is_one_of_two_threads = run.disturbance.fault.kind == "hold"
    return LAUNCH_IN_ONE_ORDER if is_one_of_two_threads else mending_of_kind(run)


FAMILY = SweepFamily(
    name="hazards",
    plan=lambda _: (),
    faults_at=lambda _passed, _run: (),
    mildness=0,
    mend=_mend,
)
