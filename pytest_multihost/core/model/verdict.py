"""The verdict on one attempt, with its diagnosis: the content of verdict.json.

The contract is docs/results.md. Fields are added, never renamed; a change of meaning raises
`SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple

from pytest_multihost.core.model.json_values import Json, JsonObject, to_json
from pytest_multihost.core.model.rank_names import Names, spans

SCHEMA: Final = "pytest-multihost-hangs/verdict/1"

JsonVerdict = Mapping[str, Any]
"""A line of verdicts.jsonl; docs/results.md describes its fields."""

Status = Literal["passed", "failed", "skipped", "xfailed", "xpassed", "error"]
"""The outcome in pytest's report."""

Outcome = Literal["crashed", "failed", "error", "hung", "passed", "skipped"]
"""The end of the world, causes first."""

RankOutcome = Literal[
    "hung",
    "crashed",
    "error",
    "failed",
    "collateral",  # it failed or was ended only because of another rank
    "killed_as_planned",  # its `kill` fault ended it
    "skipped",
    "passed",
]
"""The end of one rank."""

Phase = Literal["startup", "setup", "call", "teardown", "shutdown"]
"""How far a rank got."""


@dataclass(frozen=True, slots=True)
class RankError:
    """The exception that ended a rank's test.

    Attributes:
        type: Name of the exception's class, with its module unless that is `builtins`.
        file: The user's innermost frame, relative to pytest's rootdir where below it.
    """

    type: str
    message: str
    file: str | None
    line: int | None
    text: str
    function: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """The result of one rank; see docs/results.md for the fields."""

    omits_defaults: ClassVar = True
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
    role: str | None = None
    role_rank: int | None = None


Kind = Literal[
    "died",
    "raised",
    "stopped",
    "gil_held",
    "mismatch",
    "deadlock",
    "finished",
    "straggler",
    "livelock",
    "transport",
    "stuck",
    "unknown",
]
"""The kind of hang, by precedence; docs/results.md describes each."""

Confidence = Literal["certain", "likely", "unknown"]

DetectedBy = Literal["exit", "raise", "stopped", "mismatch", "proof", "deadline"]
"""The evidence that a watched world hangs; an `Origin` may have a word of its own."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of source code.

    Attributes:
        file: Relative to pytest's rootdir where below it.
        source: The line's text; empty if the file cannot be read.
    """

    file: str
    line: int
    function: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The line of user code at which a rank is, or which it should have reached."""

    rank: int
    file: str
    line: int
    function: str
    source: str


@dataclass(frozen=True, slots=True)
class OperationName:
    """The identity of an operation on all of its members; `sequence` is 0 if unknown."""

    name: str
    sequence: int
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """One rank's wait: its operation, and the ranks it waits for. A file lock has no operation.

    Attributes:
        by: How it waits for them, in a world with roles; see docs/results.md.
    """

    omits_defaults: ClassVar = True
    rank: int
    operation: OperationName | None
    for_: tuple[int, ...]
    by: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact about a rank, with its source.

    Attributes:
        fact: The fact: ``entered all_reduce #3``.
        source: Its source: ``recorder``, ``flight-recorder``, ``pytest``, ``proc``, ...
        at_s: When it happened, in seconds from the world's start; None for a fact without a time.
    """

    rank: int
    fact: str
    source: str
    at_s: float | None = None

    @property
    def claim(self) -> str:
        """The fact with its time: ``entered all_reduce #3 at +0.62 s``."""
        return self.fact if self.at_s is None else f"{self.fact} at +{self.at_s:.2f} s"


@dataclass(frozen=True, slots=True)
class PlaceGroup:
    """Ranks whose threads were at the same place, innermost frame first.

    The threads are the main ones, except if the diagnosis is about a function that a rank runs for
    another one: then the thread that runs it.
    """

    ranks: tuple[int, ...]
    frames: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceSide:
    """Ranks that did the same where the ranks of a group parted; see docs/results.md.

    Attributes:
        through: The outermost line that differs, if the user's innermost one does not.
        text: Their operation, its line, and how often.
    """

    ranks: tuple[int, ...]
    operation: OperationName | None
    file: str | None
    line: int | None
    function: str | None
    source: str | None
    through: Place | None
    count: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first collective of a group that its ranks did not enter alike; see docs/results.md.

    Attributes:
        lead: The beginning of the summary: how much the ranks had in common, and in which group.
            Pages show it above the sides; verdict.json has no such field.
    """

    common: int
    group: tuple[int, ...]
    evidence: str
    minority: tuple[int, ...]
    sides: tuple[DivergenceSide, ...]
    lead: str
    summary: str


class SentencePart(NamedTuple):
    """A part of a sentence, and its meaning: the culprits, an operation's group, or neither."""

    text: str
    names: Literal["culprit", "group", ""] = ""


Sentence = tuple[SentencePart, ...]


def sentence(*parts: str | Sentence) -> Sentence:
    """Join texts and sentences to one."""
    return tuple(
        span
        for part in parts
        for span in ((SentencePart(part),) if isinstance(part, str) else part)
        if span.text
    )


def blamed_ranks(culprits: tuple[int, ...], cycle: tuple[int, ...]) -> tuple[int, ...]:
    """Return the culprits, or the one rank of a cycle of its own threads."""
    return culprits or (cycle if len(cycle) == 1 else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a world hung or broke; see docs/results.md for the fields."""

    kind: Kind
    confidence: Confidence
    phase: Phase
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    cycle: tuple[int, ...]
    waits_for: tuple[WaitsFor, ...]
    operation: OperationName | None
    where: RankPlace | None
    silent_s: float
    detected_after_s: float
    detected_by: str
    headline: Sentence
    places: tuple[RankPlace, ...] = ()
    evidence: tuple[Evidence, ...]
    groups: tuple[PlaceGroup, ...]
    notes: tuple[str, ...]
    divergence: Divergence | None = None

    @property
    def blamed(self) -> tuple[int, ...]:
        """The ranks that a report marks: see `blamed_ranks`."""
        return blamed_ranks(self.culprits, self.cycle)

    @property
    def summary(self) -> str:
        """The headline as text."""
        return "".join(span.text for span in self.headline)

    def record(self) -> dict[str, Json]:
        """Return its JSON for verdict.json, where sentences are texts."""
        evidence = [{**to_json(each), "claim": each.claim} for each in self.evidence]
        found = {**to_json(self), "summary": self.summary, "evidence": evidence}
        del found["headline"]
        if self.divergence is not None:
            divergence = to_json(self.divergence)
            del divergence["lead"]
            found["divergence"] = divergence
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One attempt of one multihost test; see docs/results.md for the fields.

    Faults and the diagnosis are already JSON objects: their formats are contracts as well.
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
    clock: str = "real"
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
    replay_command: str = ""
    clock_jumps: JsonObject | None = None
    compact: bool = False
    analyses: Mapping[str, JsonObject | None] = field(default_factory=dict)

    def record(self) -> JsonObject:
        """Return its JSON for verdict.json, where each analysis is a field of its own."""
        found = to_json(self)
        del found["analyses"]
        if self.compact:
            classes: dict[tuple[object, ...], list[RankResult]] = {}
            for each in self.rank_results:
                classes.setdefault(_class_of(each), []).append(each)
            found["rank_results"] = [
                {"ranks": spans([each.rank for each in alike]), **to_json(alike[0])}
                for alike in classes.values()
            ]
        else:
            del found["compact"]
        return {**found, **self.analyses}


LARGE = 64
"""The number of ranks above which a verdict may be compact."""


def outcome_word(outcome: str, exit_codes: Iterable[int | None]) -> str:
    """Return the reader's word for an outcome: a process that exits with 0 has not crashed.

    Args:
        exit_codes: The exit codes of the processes that have crashed; None if a signal ended one,
            or if it has not ended.
    """
    return "exited" if outcome == "crashed" and {*exit_codes} == {0} else outcome


def run_word(verdict: JsonVerdict) -> str:
    """Return a test's status, or its world's outcome if that made it fail; see `outcome_word`."""
    outcome = str(verdict["outcome"])
    if verdict["status"] not in ("failed", "error") or outcome not in ("hung", "crashed"):
        return str(verdict["status"])
    gone = (each for each in verdict["rank_results"] if each["outcome"] == outcome)
    return outcome_word(outcome, (each["exit_code"] for each in gone))


def run_headline(verdict: JsonVerdict) -> str:
    """Return the summary of a verdict, in one line; empty if the world ended as it should."""
    if verdict["diagnosis"] is not None:
        return str(verdict["diagnosis"]["summary"])
    return next(own_errors(verdict), str(verdict["reason"] or ""))


def names_of(verdict: JsonVerdict) -> Names:
    """Return how texts call the ranks of a verdict's world."""
    roles: dict[str, list[int]] = {}
    for each in verdict["rank_results"]:
        if (role := each.get("role")) is not None:
            roles.setdefault(role, []).append(each["rank"])
    named = tuple((role, range(min(ranks), max(ranks) + 1)) for role, ranks in roles.items())
    return Names(verdict["world_size"], named)


def own_errors(verdict: JsonVerdict, culprits: Sequence[int] = ()) -> Iterator[str]:
    """Yield the own exceptions of ranks other than the culprits."""
    names = names_of(verdict)
    for each in verdict["rank_results"]:
        is_own = each["outcome"] != "collateral" and each["rank"] not in culprits
        if each["error"] is not None and is_own:
            first = (str(each["error"]["message"]).splitlines() or [""])[0]
            who = f"{names.rank(each['rank'])}: {each['error']['type']}"
            yield f"{who}: {first}" if first else who


def _class_of(rank: RankResult) -> tuple[object, ...]:
    """Return the key that is equal for ranks that ended alike."""
    operations = tuple(
        (each.get("name"), each.get("sequence"), each.get("kind")) for each in rank.operations
    )
    error = rank.error
    raised = (error.type, error.file, error.line) if error is not None else None
    end = (rank.phase, rank.outcome, rank.exit_code, rank.signal, rank.label)
    return rank.host, *end, operations, raised
