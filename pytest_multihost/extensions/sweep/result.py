"""Defines the result of a sweep: the plan, the disturbed runs and the weaknesses of one test.

A sweep runs a passing test again and again, each time with one disturbance: one fault at one point
of one rank. `SweepResult` is the content of sweep.json; its contract is docs/results.md. Fields
are added, never renamed; a change of meaning raises `SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.json_values import Json
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.verdict import OperationName, Place

SCHEMA: Final = "pytest-multihost-hangs/sweep/1"

RunOutcome = Literal[
    "survived",  # the world passed
    "told",  # it failed, and every rank ended by itself
    "left waiting",  # ranks waited for a failed rank
    "hung",
    "timed out",  # a timeout of the runtime or of the program ended a wait
    "mismatched",  # ranks entered collectives that cannot match, and none was left waiting
    "wrong",  # no rank noticed, and values of ranks or saved files are wrong
    "split",  # ranks passed and others failed, and no rank was left waiting
    "not reached",  # the disturbance did not happen
]
"""The outcome of a disturbed run."""

WEAK: Final[frozenset[RunOutcome]] = frozenset(
    {"left waiting", "hung", "timed out", "mismatched", "wrong"}
)
"""Outcomes that show a weakness: a rank waits for something that never comes, collectives cannot
match, or something is wrong, and no rank has noticed."""

Sign = Literal[
    "values",  # ranks differ in a value that must be the same
    "test",  # an assertion of the test itself failed, and no rank raised an error of the program
    "files",  # a saved file does not load, or is damaged
]
"""The sign that a run is wrong."""

SweepStatus = Literal["passed", "failed", "not swept", "interrupted"]


@dataclass(frozen=True, slots=True)
class FaultWords:
    """The words of a report for faults of one kind, as its `FaultKind` has them."""

    stays_in_memory: ClassVar = True
    sentence: str = ""
    mending: str = ""


NO_WORDS = FaultWords()


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One fault at one point of one rank.

    Attributes:
        fault: Its `ranks` are one rank, all ranks if `is_first`, or as suggested by an extension.
        role: The ranks that pass the same points; disturbing any of them should show the same.
        passed: The point, as the undisturbed run passed it.
        class_: The number of its class; disturbances of one class likely show the same.
        alike: Other lines with points of the class; not each is tried.
        choice: The kind of choice, in small letters; empty for a fault that no plan has chosen.
        turn: The turn of the choice; 0 is the likeliest one of its class.
        words: The words for its kind of fault, which a plugin may offer; none if no plan has chosen
            it.
    """

    family: str
    fault: Fault
    role: tuple[int, ...]
    passed: RecordedPoint
    class_: int
    alike: tuple[Place, ...] = ()
    choice: str = field(default="", compare=False)
    turn: int = field(default=0, compare=False)
    words: FaultWords = field(default=NO_WORDS, compare=False)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The disturbances of a sweep, the likeliest to show a weakness first.

    Attributes:
        point_count: The number of points passed by all ranks together.
        disturbances: Run in this order, as long as the budget lasts.
        brute_force: The number of runs for all faults at all points of all ranks.
    """

    roles: tuple[tuple[int, ...], ...]
    point_count: int
    disturbances: tuple[Disturbance, ...]
    brute_force: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DisturbedRun:
    """A run with one disturbance, judged.

    Attributes:
        culprit: The culprit's line of user code: where it decided otherwise than the others, where
            it was disturbed and failed, or where it waits itself.
        library: The line of an installed package at which the culprit failed; None if it did not.
            It is kept because user code calls much of a library from one line.
        has_decided: Whether `culprit` is the line at which the disturbed rank decided.
        waiting: The line of user code at which ranks wait, or at which the others have entered a
            collective that cannot match; None if no rank waits.
        waiting_ranks: The ranks that wait for the culprits, or entered another collective.
        culprits: The ranks that the others wait for; several if they wait for each other.
        operation: The operation in which the waiting ranks wait.
        kind: The kind of hang, of docs/results.md; None if no rank waits.
        summary: One sentence: the diagnosis of the verdict, or the error.
        error: The error of the disturbed rank, or of the culprit, as one line; None without one.
        again: Whether the disturbed rank passed the point again afterwards; None if unknown.
        is_pressed: Whether others polled, or had timeouts of seconds, while the rank was held; None
            if no rank was held.
        detected_by: The evidence that the world hangs; None if it does not.
        is_proven: Whether the run proves that no rank could go on, however slow the machine was.
        token: The value of --multihost-replay that repeats the run.
        directory: The folder of its artifacts, relative to the artifacts directory; None if they
            are not kept.
        wrong_by: The sign that the run is wrong; None if it is not.
        said: The first line in the logs of a weak run that reports a warning or an error and that
            the undisturbed run did not have; empty without one.
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
    has_decided: bool = False
    wrong_by: Sign | None = None
    said: str = ""

    @property
    def weakness_key(self) -> tuple[object, ...]:
        """The key of the weakness; it has the operation's name, because its number may differ."""
        lines = (self.culprit, self.library, self.waiting)
        operation = self.operation.name if self.operation is not None else None
        return (*((each.file, each.line) if each else None for each in lines), operation)


@dataclass(frozen=True, slots=True)
class UnsteadyRun:
    """A run that showed a weakness, although its repeats did not show it each time.

    Attributes:
        run: The index in `runs`.
        repeated: The number of repeats, and the number of these that showed the weakness again.
    """

    run: int
    repeated: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEnd:
    """The end of a weakness's wait in a job, which no harness watches.

    Attributes:
        by: ``launcher``: the process of a failed rank ends, and the launcher ends the others;
            ``timeout``: a timeout does, whose `name` is known; ``runtime``: all processes end by
            themselves; ``nothing``: nothing does within `after_s`; ``not measured``: `name` has
            the reason.
        after_s: Seconds from the disturbance to the end, in the world's time.
    """

    by: Literal["launcher", "timeout", "runtime", "nothing", "not measured"]
    name: str = ""
    after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """How much a weakness matters.

    Attributes:
        stays: The lasting error, as a sentence; empty if none is known.
        says: The first error or line of a log that a reader of the job's logs would find; empty if
            there is none before the wait ends.
        end: The end of the wait; None if no rank waits.
    """

    stays: str = ""
    says: str = ""
    end: WaitEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """Runs that show the same culprit line, waiting line and operation.

    Attributes:
        witness: The run with the mildest disturbance among the runs whose repeats all show the
            weakness; if there is none, the run whose repeats show it most often.
        shown_by: All runs that show the weakness, including the witness, as indices in `runs`.
        repeated: The number of repeats of the witness, and the number of these that showed the
            weakness again.
        unsteady: Other repeated runs that did not show the weakness each time.
        accepted: The project's reason to accept the weakness; None if it is not accepted.
        rating: How much it matters; None if it was not rated.
        is_hidden: Whether reports only count it, because a launcher ends it soon.
    """

    witness: DisturbedRun
    shown_by: tuple[int, ...]
    repeated: tuple[int, int] = (0, 0)
    unsteady: tuple[UnsteadyRun, ...] = ()
    accepted: str | None = None
    rating: Rating | None = None
    is_hidden: bool = False

    @property
    def is_confirmed(self) -> bool | None:
        """Whether a repeat showed the weakness again; None if nothing was repeated."""
        counts = [self.repeated, *(each.repeated for each in self.unsteady)]
        if not any(times for times, _ in counts):
            return None
        return any(shown for _, shown in counts)

    @property
    def fails_test(self) -> bool:
        """Whether the weakness makes the test fail.

        It does unless it is accepted, hidden, or seen by chance only: no repeat showed it again, or
        there was no time for one and nothing proves it.
        """
        is_shown = self.witness.is_proven if self.is_confirmed is None else self.is_confirmed
        return self.accepted is None and not self.is_hidden and is_shown


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Disturbances that were planned and not run.

    Attributes:
        reason: ``budget``, ``known``, ``machine``, ...; docs/results.md lists all reasons.
    """

    reason: str
    family: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The sweep of one test; see docs/results.md for the fields.

    Attributes:
        status: ``failed`` if a weakness makes the test fail.
        reason: The reason why the test was not swept, or why the sweep ended; None otherwise.
        selected_by: pytest's arguments that select the test, from the directory where pytest was
            started.
        points: The number of points that each rank passed, by kind of point.
        shard: Always None; earlier versions could run a part of the plan, and wrote its number.
        lanes: The number of worlds at a time.
        started_at: The start of the sweep, in UTC; empty if unknown.
        environment: Versions by package name; None for packages that are not installed.
        unmet_acceptances: Accepted weaknesses that were not found, as texts.
        made_with: Always None; earlier versions wrote the inputs of the runs.
        earlier: Always None; earlier versions could continue a sweep, and wrote its runs.
    """

    schema: Literal["pytest-multihost-hangs/sweep/1"] = SCHEMA
    run_id: str
    nodeid: str
    selected_by: tuple[str, ...] = ()
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
    made_with: Json = None
    earlier: Json = None

    def count(self, *outcomes: RunOutcome) -> int:
        """Return the number of runs with one of these outcomes."""
        return sum(each.outcome in outcomes for each in self.runs)
