"""Who made the others wait, and how that is known: the diagnosis of docs/verdict.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pytest_multihost.model.verdict import Phase

Kind = Literal[
    "straggler",
    "livelock",
    "finished",
    "raised",
    "died",
    "stopped",
    "gil_held",
    "mismatch",
    "deadlock",
    "transport",
    "stuck",
    "unknown",
]
"""What kind of hang it is; docs/verdict.md tells each."""

Confidence = Literal["certain", "likely", "unknown"]

DetectedBy = Literal["exit", "raise", "stopped", "mismatch", "proof", "deadline"]
"""What showed that the world hangs."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of somebody's code.

    Attributes:
        file: Relative to pytest's rootdir where below it.
        line: Line in it.
        function: Whose.
        source: The line's text; empty where the file cannot be read.
    """

    file: str
    line: int
    function: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class OperationName:
    """Which operation, as all of its members know it; `sequence` is 0 where that is unknown."""

    name: str
    sequence: int
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """One rank's wait: in which operation, for whom. A lock of a file has no operation."""

    rank: int
    operation: OperationName | None
    for_: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact about a rank, and where it comes from.

    Attributes:
        rank: Whom it concerns.
        fact: What is known: ``entered all_reduce #3``.
        source: Who tells: ``recorder``, ``flight-recorder``, ``pytest``, ``proc``, ...
        at_s: When that happened, in seconds from the world's start; None for a fact without a time
            of its own.
    """

    rank: int
    fact: str
    source: str
    at_s: float | None = None

    @property
    def claim(self) -> str:
        """The fact with its time, for the reader: ``entered all_reduce #3 at +0.62 s``."""
        return self.fact if self.at_s is None else f"{self.fact} at +{self.at_s:.2f} s"


@dataclass(frozen=True, slots=True)
class PlaceGroup:
    """Ranks whose main threads were at the same place, innermost frame first."""

    ranks: tuple[int, ...]
    frames: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a world hung or broke; see docs/verdict.md for the fields."""

    kind: Kind
    confidence: Confidence
    phase: Phase
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    cycle: tuple[int, ...]
    waits_for: tuple[WaitsFor, ...]
    operation: OperationName | None
    where: Mapping[str, Any] | None
    silent_s: float
    detected_after_s: float
    detected_by: DetectedBy
    summary: str
    evidence: tuple[Evidence, ...]
    groups: tuple[PlaceGroup, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the contract."""
        data = asdict(self)
        for each in data["waits_for"]:
            each["for"] = each.pop("for_")
        for each, evidence in zip(data["evidence"], self.evidence, strict=True):
            each["claim"] = evidence.claim
        return data
