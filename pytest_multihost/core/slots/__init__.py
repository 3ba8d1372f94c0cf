"""Files that a rank writes and the controller reads: slot page, log, stacks, answers.

`rank` writes and `watch` reads them; this package imports neither.

`page` is the slot page, with the history and the archive beside it; `readers` reads these two, and
which threads wait. `rank_files` are the other files of a rank.
"""

from pytest_multihost.core.slots.page import (
    NO_RECORD,
    Call,
    SlotPage,
    read_open_operations,
    read_slots,
    shift_times,
    slots_path,
)
from pytest_multihost.core.slots.rank_files import FlightMailbox

__all__ = [
    "NO_RECORD",
    "Call",
    "FlightMailbox",
    "SlotPage",
    "read_open_operations",
    "read_slots",
    "shift_times",
    "slots_path",
]
