"""The verdict on one attempt, and the diagnosis in it: what verdict.json holds.

The contract is docs/verdict.md. Fields are added, never renamed; a change of meaning raises
`SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pytest_multihost.model.json_values import Json, JsonObject, to_json

SCHEMA: Final = "pytest-multihost-hangs/verdict/1"

JsonVerdict = Mapping[str, Any]
"""A line of verdicts.jsonl; docs/verdict.md describes its fields."""

Status = Literal["passed", "failed", "skipped", "xfailed", "xpassed", "error"]
"""What pytest reports."""

Outcome = Literal["crashed", "failed", "error", "hung", "passed", "skipped"]
"""What happened to the world, cause first."""

RankOutcome = Literal[
    "hung",
    "crashed",
    "error",
    "failed",
    "collateral",  # it failed or was ended only because of another
    "killed_as_planned",  # its own armed `kill` ended it
    "skipped",
    "passed",
]
"""What happened to one rank."""

Phase = Literal["startup", "setup", "call", "teardown", "shutdown"]
"""How far a rank got."""


@dataclass(frozen=True, slots=True)
class RankError:
    """The exception that ended a rank's part.

    Attributes:
        type: Name of the exception's class, with its module unless that is `builtins`.
        message: Its text, first line first.
        file: The user's innermost frame, relative to pytest's rootdir where below it.
        line: Line in that file.
        text: The representation that pytest made.
        function: The function in which that line is.
    """

    type: str
    message: str
    file: str | None
    line: int | None
    text: str
    function: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """One rank's part in the verdict; see docs/verdict.md for the fields."""

    rank: int
    host: str
    pid: int | None
    phase: Phase
    outcome: RankOutcome
    exit_code: int | None
    signal: int | None
    duration_s: float
    cpu_s: float
    peak_rss_bytes: int
    label: str | None
    operations: tuple[JsonObject, ...]
    log: str
    error: RankError | None


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
class CulpritPlace:
    """The line of the user's code at which a culprit is, or whose call it should have made."""

    rank: int
    file: str
    line: int
    function: str
    source: str


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
    where: CulpritPlace | None
    silent_s: float
    detected_after_s: float
    detected_by: DetectedBy
    summary: str
    evidence: tuple[Evidence, ...]
    groups: tuple[PlaceGroup, ...]
    notes: tuple[str, ...]

    def record(self) -> dict[str, Json]:
        """Return it as verdict.json has it, where evidence carries its claim in words, too."""
        evidence = [{**to_json(each), "claim": each.claim} for each in self.evidence]
        return {**to_json(self), "evidence": evidence}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One attempt of one multihost test; see docs/verdict.md for the fields.

    Faults and the diagnosis are in it as JSON objects already: theirs are contracts, too.
    """

    schema: Literal["pytest-multihost-hangs/verdict/1"] = SCHEMA
    run_id: str
    nodeid: str
    attempt: int
    worker: str | None
    dir: str
    backend: str
    world_size: int
    launch: str
    seed: int
    replay: str | None
    status: Status
    expected: bool | None
    outcome: Outcome
    ended_by: Literal["self", "harness"]
    reason: str | None
    started_at: str
    startup_s: float | None
    duration_s: float
    environment: Mapping[str, str | None]
    faults: tuple[JsonObject, ...]
    rank_results: tuple[RankResult, ...]
    diagnosis: JsonObject | None
