"""A sweep of one test: the points it passed, how each was disturbed, and what came of that.

A sweep runs a passing test again and again, each time with one disturbance: one fault at one point
of one rank. `SweepResult` is the content of sweep.json; its contract is docs/sweep-json.md. Fields
are added, never renamed; a change of meaning raises `SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.verdict import OperationName, Place

SCHEMA: Final = "pytest-multihost-hangs/sweep/1"

RunOutcome = Literal[
    "survived",  # the world passed
    "told",  # it failed, and every rank ended by itself
    "left waiting",  # ranks waited for one that had failed
    "hung",
    "timed out",  # a timeout of the runtime or of the program ended a wait
    "split",  # ranks passed and others failed, and nobody was left waiting
    "not reached",  # the disturbance did not happen
]
"""What a disturbance has brought about."""

WEAK: Final[frozenset[RunOutcome]] = frozenset({"left waiting", "hung", "timed out"})
"""Outcomes that show a weakness: somebody waits for what never comes."""

SweepStatus = Literal["passed", "failed", "not swept", "interrupted"]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One fault at one point of one rank.

    Attributes:
        family: The name of its family.
        fault: The fault; its `ranks` is one number.
        role: The ranks that pass the same points: disturbing any of them should show the same.
        passed: The point, as it was passed in the undisturbed run.
        class_: Number of its class: what is done at all points of one likely shows the same.
        alike: Other lines at which its class is passed; not each is tried.
    """

    family: str
    fault: Fault
    role: tuple[int, ...]
    passed: RecordedPoint
    class_: int
    alike: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep will do, likeliest to find something first.

    Attributes:
        roles: The ranks of each role.
        point_count: Number of points that all ranks have passed.
        disturbances: What to run, in this order, as long as the budget lasts.
        brute_force: How many runs all points of all ranks with all faults would take.
    """

    roles: tuple[tuple[int, ...], ...]
    point_count: int
    disturbances: tuple[Disturbance, ...]
    brute_force: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DisturbedRun:
    """A run with one disturbance, judged.

    Attributes:
        disturbance: What was done.
        outcome: What came of it.
        culprit: The line of user code at which the rank is that the others wait for: where it was
            disturbed and failed, or where it waits itself.
        library: The line of an installed package at which the culprit has failed, if it has: user
            code calls much of a library by one line.
        waiting: The line of user code at which ranks wait; None if nobody does.
        waiting_ranks: Who waits.
        culprits: Whom they wait for; several if these wait for each other.
        operation: What they wait in.
        kind: The kind of hang, of docs/verdict.md; None if nobody waits.
        summary: One sentence: the diagnosis of the verdict, or the error.
        error: The error of the disturbed rank, as text of one line; None if it has none.
        again: Whether the disturbed rank has passed the point again afterwards; None: not known.
        is_pressed: Whether, when a rank was held, others were polling or had timeouts of seconds;
            None: not known.
        detected_by: What showed that the world hangs; None if it does not.
        is_proven: Whether it was seen that nobody could go on, which does not depend on how slow
            the machine was.
        seconds: Duration of the run.
        token: Repeats the run: --multihost-replay.
        directory: Its artifacts, relative to the artifacts directory; None if they are not kept.
    """

    disturbance: Disturbance
    outcome: RunOutcome
    culprit: Place | None = None
    library: Place | None = None
    waiting: Place | None = None
    waiting_ranks: tuple[int, ...] = ()
    culprits: tuple[int, ...] = ()
    operation: OperationName | None = None
    kind: str | None = None
    summary: str = ""
    error: str | None = None
    again: bool | None = None
    is_pressed: bool | None = None
    detected_by: str | None = None
    is_proven: bool = False
    seconds: float = 0.0
    token: str = ""
    directory: str | None = None

    @property
    def weakness_key(self) -> tuple[object, ...]:
        """What is equal for runs that show the same weakness; the operation's number may differ."""
        lines = (self.culprit, self.library, self.waiting)
        operation = self.operation.name if self.operation is not None else None
        return (*((each.file, each.line) if each else None for each in lines), operation)


@dataclass(frozen=True, slots=True)
class UnsteadyRun:
    """A run that showed a weakness, and whose repeats did not show it each time.

    Attributes:
        run: Its index in `runs`.
        repeated: How often it was repeated, and how often that showed the weakness again.
    """

    run: int
    repeated: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """Runs that show the same: one culprit line, one waiting line, one operation.

    Attributes:
        witness: The run with the mildest disturbance of those whose repeats show it each time; if
            none does, the one whose repeats show it most often.
        shown_by: All runs that show it, the witness among them, by their index in `runs`.
        repeated: How often the witness was repeated, and how often it showed the weakness again.
        unsteady: Other runs that were repeated, and did not show it each time.
        accepted: Why the project accepts it; None if it does not.
    """

    witness: DisturbedRun
    shown_by: tuple[int, ...]
    repeated: tuple[int, int] = (0, 0)
    unsteady: tuple[UnsteadyRun, ...] = ()
    accepted: str | None = None

    @property
    def is_confirmed(self) -> bool | None:
        """Whether a repeat has shown it again; None if nothing was repeated."""
        counts = [self.repeated, *(each.repeated for each in self.unsteady)]
        if not any(times for times, _ in counts):
            return None
        return any(shown for _, shown in counts)

    @property
    def fails_test(self) -> bool:
        """Whether it makes the test fail: it is not accepted, and not only seen by chance."""
        return self.accepted is None and self.is_confirmed is not False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Disturbances that were planned and not run.

    Attributes:
        reason: ``budget``, ``known``, ``machine``, ...: all are in docs/sweep-json.md.
        count: How many.
    """

    reason: str
    family: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The sweep of one test; see docs/sweep-json.md for the fields.

    Attributes:
        status: ``failed`` if there is a weakness that is not accepted.
        reason: Why the test was not swept, or what ended the sweep; None otherwise.
        points: How many points each rank passed, by kind of point.
        shard: Always None; earlier versions could run one part of the plan, and wrote which.
        lanes: How many worlds ran at a time.
        started_at: UTC, when the sweep began; empty if unknown.
        environment: Versions by package name; None for packages that are not installed.
        unmet_acceptances: Accepted weaknesses that were not found, as texts.
    """

    schema: Literal["pytest-multihost-hangs/sweep/1"] = SCHEMA
    run_id: str
    nodeid: str
    backend: str
    world_size: int
    seed: int
    status: SweepStatus
    reason: str | None = None
    families: tuple[str, ...] = ()
    points: Mapping[str, tuple[int, ...]]
    plan: SweepPlan
    runs: tuple[DisturbedRun, ...] = ()
    weaknesses: tuple[Weakness, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unmet_acceptances: tuple[str, ...] = ()
    budget_s: float
    duration_s: float
    shard: tuple[int, int] | None = None
    lanes: int = 1
    started_at: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)

    def count(self, *outcomes: RunOutcome) -> int:
        """Return the number of runs with one of these outcomes."""
        return sum(each.outcome in outcomes for each in self.runs)
