"""The one place that reads the clock, so that tests can bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never go backwards, the same for all processes of this machine."""

    def now(self) -> float:
        """Return the time in seconds."""


class MonotonicClock:
    """CLOCK_MONOTONIC, which every process of a machine shares."""

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()
