"""Events: observations about the ranks of a world, each kind a frozen dataclass.

A world's history is a sequence of `Event`: a time, a rank, and a body. Most bodies are sent by the
ranks themselves, as the header of a frame; `read_event` checks that header, because a test may
write anything into the rank's connection. The harness makes the others. To find out the kind of
an event, match on its body::

    match event.body:
        case PhaseEntered(phase):
            ...
        case Exited(signal=signal) if signal is not None:
            ...

A body's `kind` is its name in JSON: in frames, in facts.json and in history.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from time import CLOCK_MONOTONIC, clock_gettime, clock_gettime_ns
from typing import Any, ClassVar, Literal, get_args

from pytest_multihost.core.model.fault import START, UNKNOWN_PATH, ErrorPath, Point, PointKind
from pytest_multihost.core.model.json_values import Json, JsonObject, from_json, to_json
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.model.verdict import Phase, Place, RankError

Gate = Literal["go", "teardown", "exit"]
"""The gates that every rank waits at, in the order in which the controller opens them."""

# Bound calls: freezegun and similar packages replace `time.monotonic` in every module that holds
# it, but not these.
now = partial(clock_gettime, CLOCK_MONOTONIC)
"""Returns seconds on the machine's monotonic clock, which all of its processes share."""

now_ns = partial(clock_gettime_ns, CLOCK_MONOTONIC)
"""Returns the same in nanoseconds."""

SerializedReport = Mapping[str, Any]
"""A report as `pytest_report_to_serializable` returns it; only pytest reads it."""

BROKEN = 70
"""Exit code of a rank that could not send its result (EX_SOFTWARE of sysexits.h)."""


# The values in events


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedError:
    """An exception that was raised in a rank, as text: its object never leaves the rank.

    Attributes, beside those of a `RankError`:
        library: Where it was raised, if in an installed package: a line, and its absolute file.
        causes: The exceptions that it was raised from or while handling, last first, one line each.
        is_harness_symptom: Whether the harness raised it because another rank is lost.
        is_harness_error: Whether the harness itself failed.
        is_by_user: Whether a raise statement of the user's own code made it.
    """

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    text: str = ""
    library: Place | None = None
    causes: tuple[str, ...] = ()
    is_harness_symptom: bool = False
    is_harness_error: bool = False
    is_by_user: bool = False

    @property
    def rank_error(self) -> RankError:
        """The part of it that the verdict contains."""
        return RankError(
            self.type, self.message, self.file, self.line, self.text, function=self.function
        )


@dataclass(frozen=True, slots=True)
class XfailMark:
    """The xfail mark in force; `is_plain`: it expects any exception."""

    reason: str
    is_plain: bool


@dataclass(frozen=True, slots=True)
class WarningText:
    """A Python warning as text."""

    module: str
    category: str
    message: str
    filename: str
    lineno: int


@dataclass(frozen=True, slots=True)
class Pause:
    """How the server stops and continues a rank: alternately, until a given time.

    It is stopped for `stopped_s` (None: for ever), then runs for `running_s`. That ends at
    `until_s` on the monotonic clock (None: when it is resumed).
    """

    stopped_s: float | None = None
    running_s: float | None = None
    until_s: float | None = None

    @property
    def takes_turns(self) -> bool:
        """Whether the rank runs between two stops."""
        return bool(self.running_s)


@dataclass(frozen=True, slots=True)
class Hold:
    """How long a rank waits at a point before the controller releases it.

    Attributes:
        max_s: The longest time; None: the controller's own timeout.
    """

    min_s: float = 0.0
    max_s: float | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a fault outside of its rank, as values: see `FaultChanged.effect`.

    Attributes:
        words: The effect in words, for the reader.
        cuts: Pairs of hosts, by index: nothing that the first sends arrives at the second.
    """

    words: str
    cuts: tuple[tuple[int, int], ...] = ()


ReleaseReason = Literal[
    "others wait",  # nothing in the world can move except the held rank
    "others poll",  # they look repeatedly, and do nothing else
    "others have left",  # the test's body
    "max_s",  # the longest time is over
]
"""Why the controller released a held rank."""


# Sent by ranks


@dataclass(frozen=True, slots=True)
class Hello:
    """The rank's process runs this package's code and answers requests for its stacks."""

    kind: ClassVar = "hello"
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """Its backend is up."""

    kind: ClassVar = "ready"


@dataclass(frozen=True, slots=True)
class ReadyWhen:
    """The program of its role is ready once this TCP port of its host listens."""

    kind: ClassVar = "ready_when"
    port: int


@dataclass(frozen=True, slots=True)
class ProgramRestarted:
    """The program of its role has ended with an error, and is started again.

    Attributes:
        why: How it has ended, as in "exited with code 3".
    """

    kind: ClassVar = "program_restarted"
    why: str
    number: int
    allowed: int


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    """It has entered setup, call, teardown or shutdown.

    Attributes:
        xfail: With setup: the xfail mark that the test has before anything of it runs.
    """

    kind: ClassVar = "phase"
    omits_defaults: ClassVar = True
    phase: Phase
    xfail: XfailMark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMade:
    """pytest has made a report in it.

    Attributes:
        when: The phase: ``setup``, ``call`` or ``teardown``.
        outcome: ``passed``, ``failed`` or ``skipped``.
        wasxfail: pytest's own attribute: the reason of the xfail mark, if the test xfailed or
            xpassed.
        is_strict_xpass: Whether it failed because a strict xfail mark was not met.
        error: The exception, unless it is a skip.
    """

    kind: ClassVar = "report"
    when: str
    outcome: str
    wasxfail: str | None = None
    is_strict_xpass: bool = False
    xfail: XfailMark | None = None
    duration_s: float = 0.0
    error: RaisedError | None = None
    report: SerializedReport = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubtestEnded:
    """One of the user's subtests has ended in it; `report` is pytest's, serialised."""

    kind: ClassVar = "subtest"
    outcome: str
    report: SerializedReport = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WarningRecorded:
    """A warning was recorded in it; arguments as in the hook `pytest_warning_recorded`."""

    kind: ClassVar = "warning"
    when: str
    nodeid: str
    location: tuple[str, int, str] | None
    warning: WarningText


@dataclass(frozen=True, slots=True)
class Parked:
    """Its test body is over; runtime and sockets stay open.

    Attributes:
        runs_more: Whether the program has registered a function with `atexit`: it runs when the
            process ends, and may meet other ranks.
        leaves: Whether its process ends now, and waits for no gate: runtime and sockets close.
    """

    kind: ClassVar = "parked"
    runs_more: bool = False
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeEntered:
    """It has entered a barrier, gather or broadcast of the harness.

    Attributes:
        name: The name that the test gave it.
        nth: How often the rank has entered this one before.
        alone: Whether the rank has no other thread that could still enter another exchange.
    """

    kind: ClassVar = "exchange"
    operation: str
    name: str = ""
    nth: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class SyncPointPassed:
    """It has passed a named point of the test."""

    kind: ClassVar = "sync_point"
    name: str = ""


@dataclass(frozen=True, slots=True)
class ValueStated:
    """It has stated a value that all ranks are to have.

    Attributes:
        nth: How often it has stated a value of this name before.
        text: The value, shortened, for the reader.
        frame: The user's line; None if it is not known.
        is_asked: Whether the test has stated it. Otherwise a service has, and a difference does
            not fail the test.
    """

    kind: ClassVar = "value"
    name: str
    nth: int
    digest: str
    text: str = ""
    frame: Frame | None = None
    is_asked: bool = True


@dataclass(frozen=True, slots=True)
class SentToService:
    """It has sent a message to a service of its world, which alone understands it."""

    kind: ClassVar = "to_service"
    service: str
    message: JsonObject


@dataclass(frozen=True, slots=True)
class Done:
    """Its teardown is over.

    Attributes:
        shouldfail: Why the test wants the run to stop as failed, if it has said so to pytest's
            session.
        shouldstop: Why it wants the run to stop.
    """

    kind: ClassVar = "done"
    omits_defaults: ClassVar = True
    shouldfail: str = ""
    shouldstop: str = ""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An exception that pytest does not report has ended its test; `is_expected`: by xfail."""

    kind: ClassVar = "interrupted"
    error: RaisedError
    is_expected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultChanged:
    """A fault waits for its moment in the rank, has begun, or has ended.

    Attributes:
        index: Its index among the world's faults.
        until_s: When it ends by itself, on the monotonic clock.
        pause: How the server is to stop and continue the rank.
        resume: Whether the server is to end that pause.
        kills: Whether it is about to end the rank.
        service: The world's service that performs it outside the rank; empty if none does. Before
            `at.rendezvous()` the service has already performed it.
        effect: Its effect outside the rank, if the service reports one.
        hold: How long the controller is to hold the rank.
        rules: Numbers of the I/O rules whose counters show whether it has happened.
        note: A remark for the reader on how it is performed.
    """

    kind: ClassVar = "fault"
    index: int
    fault: str
    at: Point = START
    phase: Literal["armed", "begun", "ended"]
    until_s: float | None = None
    pause: Pause | None = None
    resume: bool = False
    kills: bool = False
    service: str = ""
    effect: Effect | None = None
    hold: Hold | None = None
    rules: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class FaultMet:
    """The user's code has met the effect of a fault: an error, a wrong clock, a file not yet there.

    Attributes:
        index: The fault's index among the world's faults.
        frames: The user's frames, innermost first. Meetings with the same frames as the last one
            are not sent.
    """

    kind: ClassVar = "fault_met"
    index: int
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class PointSite:
    """A point, and where in the user's code it is passed.

    Attributes:
        point: The point; its `nth` is not counted here.
        frame: The user's innermost line; its file is relative to pytest's rootdir where below it.
        is_main: Whether the main thread passes it.
        is_inner: Whether another point represents it, as for a collective inside
            `all_gather_object`.
        other: The other path of a rename or link; the point counts for that path as well.
        makes: Whether the call may make or empty the file.
        meets_all: Whether it is over only once every rank of the world has entered it.
        error_path: The way of an exception that is raised there.
    """

    omits_defaults: ClassVar = True
    point: Point
    frame: Frame | None = None
    is_main: bool = True
    is_inner: bool = False
    other: str = ""
    makes: bool = False
    meets_all: bool = False
    error_path: ErrorPath = UNKNOWN_PATH


@dataclass(frozen=True, slots=True)
class PointsRecorded:
    """It has passed points to which faults can be bound.

    Attributes:
        sites: New sites; their numbers continue those of the last event.
        passed: The numbers of the sites passed, in order.
        beyond: At the end: how many more points it has passed and only counted.
    """

    kind: ClassVar = "record"
    sites: tuple[PointSite, ...] = ()
    passed: tuple[int, ...] = ()
    beyond: int = 0
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class PointsPassed:
    """All points that it has passed: kind, name, call on a file, and how often."""

    kind: ClassVar = "points"
    passed: tuple[tuple[PointKind, str, str, int], ...]


# Made by the harness


@dataclass(frozen=True, slots=True)
class Forked:
    """The rank's process exists."""

    kind: ClassVar = "forked"
    pid: int


@dataclass(frozen=True, slots=True)
class ProgramReady:
    """The service that the rank's role provides is ready, as `Role(ready=...)` says."""

    kind: ClassVar = "program_ready"


@dataclass(frozen=True, slots=True)
class FaultAnswered:
    """A service has performed a fault outside of the rank, or could not: `error` says why.

    The world's fault `index` has begun; None: all faults of the service are undone.
    """

    kind: ClassVar = "answered"
    service: str
    index: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Exited:
    """Its process has ended.

    Attributes:
        code: Exit code, None when a signal ended it.
        signal: Signal number, None when it exited.
        cpu_s: User and system seconds of it and its reaped children.
        by_harness: Whether the harness had already begun to end the world.
        full: A file system that had no space left when SIGBUS ended it, ``/dev/shm``; else empty.
        lacked_memory: Whether SIGKILL ended it after the machine's kernel had begun, during the
            world, to kill processes for lack of memory.
    """

    kind: ClassVar = "exited"
    code: int | None = None
    signal: int | None = None
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    by_harness: bool = False
    full: str = ""
    lacked_memory: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """The controller has opened a gate for it."""

    kind: ClassVar = "released"
    gate: Gate


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """The controller has released the rank that the world's fault `index` held.

    Attributes:
        is_pressed: Whether another rank was in an operation with a timeout of seconds.
    """

    kind: ClassVar = "hold_ended"
    index: int
    reason: ReleaseReason
    is_pressed: bool = False


RankEventBody = (
    Hello
    | Ready
    | ReadyWhen
    | ProgramRestarted
    | PhaseEntered
    | ReportMade
    | SubtestEnded
    | WarningRecorded
    | Parked
    | ExchangeEntered
    | SyncPointPassed
    | ValueStated
    | SentToService
    | Done
    | Interrupted
    | FaultChanged
    | FaultMet
    | PointsRecorded
    | PointsPassed
)
"""The bodies of events that ranks send."""

EventBody = RankEventBody | Forked | ProgramReady | FaultAnswered | Exited | Released | HoldEnded

SENT_BY_RANKS = frozenset(each.kind for each in get_args(RankEventBody))
"""The kinds of frames that a rank may send."""


@dataclass(frozen=True, slots=True)
class Event:
    """One observed fact about one rank.

    Attributes:
        at_s: Seconds on the machine's monotonic clock.
        payload: Bytes sent with it; never written to artifacts, never unpickled here.
    """

    at_s: float
    rank: int
    body: EventBody
    payload: bytes = b""

    @property
    def kind(self) -> str:
        """The name of the event's kind."""
        return self.body.kind

    def record(self, *, origin_s: float) -> dict[str, Json]:
        """Return its line in history.jsonl: time relative to `origin_s`, without the payload."""
        detail = to_json(self.body)
        kind = detail.pop("kind")
        at_s = round(self.at_s - origin_s, 6)
        return {"at_s": at_s, "rank": self.rank, "kind": kind, "detail": detail}


def event_header(body: RankEventBody, at_s: float) -> dict[str, Json]:
    """Return the header of the frame in which a rank sends an event."""
    return {**to_json(body), "at_s": at_s}


def read_event(rank: int, header: Mapping[str, object], payload: bytes) -> Event:
    """Return the event that a rank has sent.

    Args:
        header: The frame's header, as `event_header` makes it; not trusted.

    Raises:
        JsonError: The header is not that of an event.
    """
    at_s = from_json(float, header.get("at_s"))
    return Event(at_s, rank, from_json(RankEventBody, header), payload)
