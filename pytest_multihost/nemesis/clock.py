"""The time that faults go by, also in a test that stops the time."""

from functools import partial
from time import CLOCK_MONOTONIC, clock_gettime

#: Seconds on the machine's monotonic clock. A bound call: freezegun and its like leave it alone.
now = partial(clock_gettime, CLOCK_MONOTONIC)
