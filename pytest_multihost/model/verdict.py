"""The machine-readable result: what `verdict.json` holds.

The contract is docs/verdict.md. Fields are added, never renamed; a change of meaning raises
`SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA = "pytest-multihost-hangs/verdict/1"

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
    operations: tuple[Mapping[str, Any], ...]
    log: str
    error: RankError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One attempt of one multihost test; see docs/verdict.md for the fields.

    `diagnosis` is None as long as nobody judges hangs.
    """

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
    faults: tuple[Mapping[str, Any], ...]
    rank_results: tuple[RankResult, ...]
    diagnosis: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the contract."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Rebuild the value that `to_json` wrote.

        Raises:
            ValueError: The object follows another schema.
        """
        if data.get("schema") != SCHEMA:
            message = f"not a {SCHEMA} object: schema is {data.get('schema')!r}"
            raise ValueError(message)
        fields = {key: value for key, value in data.items() if key != "schema"}
        return cls(
            **{
                **fields,
                "faults": tuple(fields["faults"]),
                "rank_results": tuple(_rank_result(each) for each in fields["rank_results"]),
            }
        )


def _rank_result(data: Mapping[str, Any]) -> RankResult:
    error = data["error"]
    return RankResult(
        **{
            **data,
            "operations": tuple(data["operations"]),
            "error": RankError(**error) if error else None,
        }
    )
