"""Time that advances only on request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ManualClock:
    """A clock that advances only on request."""

    seconds: float = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Advance the time; negative values count as 0."""
        self.seconds += max(0.0, seconds)
