"""What a rank leaves for the controller to read: its slot page, its flight recorder's answers.

Beneath both `rank`, which writes, and `watch`, which reads; it knows neither.
"""

from pytest_multihost.slots.flight_mailbox import FlightMailbox
from pytest_multihost.slots.layout import NO_RECORD, slots_path
from pytest_multihost.slots.page import Call, SlotPage
from pytest_multihost.slots.reading import read_open_operations, read_slots, shift_times

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
