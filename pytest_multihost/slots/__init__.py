"""What a rank leaves for the controller to read: its slot page, its flight recorder's answers.

Beneath both `rank`, which writes, and `watch`, which reads; it knows neither.

`page` is the slot page, `flight_mailbox` the flight recorder's.
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
