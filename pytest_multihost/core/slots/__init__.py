"""Files that a rank writes and the controller reads: slot page, log, stacks, answers.

`rank` writes and `watch` reads them; this package imports neither.

* `page`: the slot page, with the history and the archive beside it. `history` reads the history,
  `waiting` which of the rank's threads wait.
* `flight_mailbox`: questions to torch's flight recorder.
* `rank_log`: the bound on a rank's log.
* `stacks`: how a rank's stacks are taken.
"""

from pytest_multihost.core.slots.flight_mailbox import FlightMailbox
from pytest_multihost.core.slots.history import read_histories
from pytest_multihost.core.slots.page import (
    ARCHIVED,
    NO_RECORD,
    RECORDS,
    Call,
    SlotPage,
    SourceRef,
    check_page,
    children_of,
    history_path,
    move_files,
    parse_group,
    read_open_operations,
    read_slots,
    shift_times,
    slots_path,
)
from pytest_multihost.core.slots.stacks import dump_signal, py_spy_command

__all__ = [
    "ARCHIVED",
    "NO_RECORD",
    "RECORDS",
    "Call",
    "FlightMailbox",
    "SlotPage",
    "SourceRef",
    "check_page",
    "children_of",
    "dump_signal",
    "history_path",
    "move_files",
    "parse_group",
    "py_spy_command",
    "read_histories",
    "read_open_operations",
    "read_slots",
    "shift_times",
    "slots_path",
]
