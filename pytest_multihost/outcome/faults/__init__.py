"""What has become of a world's faults: which have happened, and which still go on."""

from pytest_multihost.outcome.faults.firings import (
    fault_note,
    fault_notes,
    firings,
    require_fired,
    unfired_faults,
)
from pytest_multihost.outcome.faults.ongoing import (
    continued_by_plan,
    frozen_for_good,
    pending_actions,
)

__all__ = [
    "continued_by_plan",
    "fault_note",
    "fault_notes",
    "firings",
    "frozen_for_good",
    "pending_actions",
    "require_fired",
    "unfired_faults",
]
