"""The family `hazards`: what the undisturbed run shows of hangs elsewhere is tried.

Its disturbances come from the hazards that the rules have found, not from points: a sweep gets them
from `hazards.disturbances_of`, and runs them before all others.
"""

from __future__ import annotations

from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.families.late import HELD
from pytest_multihost.extensions.sweep.mendings import LAUNCH_IN_ONE_ORDER

FAMILY = SweepFamily(
    name="hazards",
    plan=lambda _: (),
    faults_at=lambda _passed, _run: (),
    mildness=0,
    sentences={
        "hold": HELD,
        "stream_order": "operations of {who} ran in the order of their launch, as in NCCL's"
        " streams",
    },
    mend=lambda _: LAUNCH_IN_ONE_ORDER,
)
