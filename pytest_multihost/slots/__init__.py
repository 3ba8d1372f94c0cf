"""Files that a rank writes and the controller reads: slot page and flight recorder answers.

`rank` writes and `watch` reads them; this package imports neither.

`page` is the slot page with the history beside it, which `history` reads, and the archive, which
`archive` reads; `waiting` reads who waits. `flight_mailbox` is the flight recorder's mailbox;
`rank_log` bounds the logs.
"""

from pytest_multihost.slots.flight_mailbox import FlightMailbox
from pytest_multihost.slots.page import (
    NO_RECORD,
    Call,
    SlotPage,
    read_open_operations,
    read_slots,
    shift_times,
    slots_path,
)

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
