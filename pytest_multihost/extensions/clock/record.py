"""The record of a world's jumping clock, for the verdict and the pages."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.core.model.json_values import Json
from pytest_multihost.core.model.result import ServiceRecord


@dataclass(frozen=True, slots=True)
class ClockDoubt:
    """A reason why the clock of a world ran like the machine's for a while.

    Attributes:
        why: The event that could have ended a wait of the world before its next timer, as a
            sentence.
        since_s: When the reason first applied, in the world's time.
    """

    why: str
    since_s: float
    until_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The jumps and doubts of a clock.

    Attributes:
        doubts: Why the clock could not jump at times, the longest doubt first.
    """

    jumps: int
    jumped_s: float
    doubts: tuple[ClockDoubt, ...] = ()

    def of_world(self, started_s: float, ended_s: float) -> ServiceRecord:
        """Return the service record of a world with these times of start and end."""
        real_s = ended_s - started_s - self.jumped_s
        jumps = f"{self.jumps} jump{'s' if self.jumps != 1 else ''}"
        doubts: list[Json] = [
            {
                "since_s": round(each.since_s - started_s, 4),
                "until_s": round(each.until_s - started_s, 4),
                "for_s": round(each.for_s, 4),
                "why": each.why,
            }
            for each in self.doubts
        ]
        return ServiceRecord(
            verdict={
                "clock": "jump",
                "clock_jumps": {
                    "jumps": self.jumps,
                    "jumped_s": round(self.jumped_s, 4),
                    "real_s": round(real_s, 4),
                    "doubts": doubts,
                },
            },
            lines=(
                f"jumped {self.jumped_s:.1f} s in {jumps}; the world took {real_s:.1f} s",
                *(f"real time for {each.for_s:.1f} s: {each.why}" for each in self.doubts),
            ),
            lead="Times on this page are those of the ranks' clock, which jumps ahead while only a"
            " timeout can end their waits.",
        )
