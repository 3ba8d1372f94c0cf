"""When things happened, also in a test that stops the time.

freezegun and its like look for `time.monotonic` in every module and put their own in its place; a
bound call of another function they leave alone.
"""

from functools import partial
from time import CLOCK_MONOTONIC, clock_gettime, clock_gettime_ns
from typing import Protocol

#: Seconds on the machine's monotonic clock.
now = partial(clock_gettime, CLOCK_MONOTONIC)

#: The same in nanoseconds.
now_ns = partial(clock_gettime_ns, CLOCK_MONOTONIC)


class Clock(Protocol):
    """Seconds that never go backwards, the same for all processes of this machine."""

    def now(self) -> float:
        """Return the time in seconds."""


class MonotonicClock:
    """CLOCK_MONOTONIC, which every process of a machine shares; tests bring their own clock."""

    def now(self) -> float:
        """Return the time in seconds."""
        return now()
