"""A launcher whose ranks follow a script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Literal, Self

from pytest_multihost.core.launch import Ending, WireFrame, WorldProcesses
from pytest_multihost.core.model.event import Event, Exited, Pause
from pytest_multihost.core.model.messages import (
    CollectiveBroken,
    CollectiveComplete,
    DumpKind,
    FaultRequest,
    PauseRank,
    PerformFault,
    Release,
    ToRank,
    UndoFaults,
)
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.verdict import Phase
from pytest_multihost.testing.clock import ManualClock
from pytest_multihost.testing.values import Detail, exited, make_event, report

Trigger = Literal["start", "go", "teardown", "exit", "complete", "broken"]
"""The event that starts a step: the world's start, a gate that opens, or an exchange's answer."""


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a rank, `after_s` seconds after the trigger `on`."""

    rank: int
    kind: str
    detail: Detail = field(default_factory=dict)
    after_s: float = 0.0
    on: Trigger = "start"


def well_behaved(rank: int, *, stays_in: Phase | None = None) -> list[Step]:
    """Return the script of a rank that passes, or that enters a phase and never leaves it."""
    life: list[tuple[Phase | None, Step]] = [
        ("startup", Step(rank, "forked", {"pid": 1000 + rank})),
        ("startup", Step(rank, "hello")),
        ("setup", Step(rank, "ready")),
        ("setup", Step(rank, "phase", {"phase": "setup"}, on="go")),
        ("call", Step(rank, "report", report("setup"), on="go")),
        ("call", Step(rank, "phase", {"phase": "call"}, on="go")),
        ("teardown", Step(rank, "report", report("call"), on="go")),
        ("teardown", Step(rank, "parked", on="go")),
        ("teardown", Step(rank, "phase", {"phase": "teardown"}, on="teardown")),
        ("shutdown", Step(rank, "report", report("teardown"), on="teardown")),
        ("shutdown", Step(rank, "done", on="teardown")),
        (None, Step(rank, "exited", exited(), on="exit")),
    ]
    last = max(index for index, (phase, _) in enumerate(life) if phase == stays_in)
    return [step for _, step in life[: last + 1]]


@dataclass(slots=True)
class ScriptedLauncher:
    """A launcher of one world, and that world itself.

    Attributes:
        clock: Advances while `wait` waits for events.
        script: The steps. A rank that has exited does nothing more.
        error: A failure of the harness, raised by `start` or later by `wait`.
        error_at_s: Seconds after the start; 0 means that starting raises it.
        alive: Ranks that have not exited.
        sent: Frames sent to ranks: time, rank, frame.
        dumped: For each request for stacks, the ranks.
        ended: For each call of `end`, its grace period.
        paused: For each `PauseRank` requested, the rank and the pause; None to resume.
        disturbed: For each `PerformFault` or `UndoFaults` requested, the rank and the fault; None
            to undo all.
        moved_bytes: The sum of `bytes_per_wait` over all calls of `wait`.
        bytes_per_wait: The bytes of an incomplete frame that each `wait` moves.
    """

    clock: ManualClock
    script: Sequence[Step] = ()
    error: BaseException | None = None
    error_at_s: float = 0.0
    alive: set[int] = field(default_factory=set)
    sent: list[tuple[float, int, WireFrame[ToRank]]] = field(default_factory=list)
    dumped: list[tuple[int, ...]] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    paused: list[tuple[int, Pause | None]] = field(default_factory=list)
    disturbed: list[tuple[int, int] | None] = field(default_factory=list)
    moved_bytes: int = 0
    bytes_per_wait: int = 0
    name: str = "scripted"
    _pending: list[tuple[float, Step]] = field(default_factory=list)
    _broken_s: float = math.inf

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> Self:
        """Start the world; writes nothing to its directories."""
        del directory, scratch
        if self.error is not None and self.error_at_s == 0:
            raise self.error
        self._broken_s = self.clock.now() + (self.error_at_s if self.error else math.inf)
        self.alive = set(range(spec.size))
        self._schedule(step for step in self.script if step.on == "start")
        return self

    def _schedule(self, steps: Iterable[Step]) -> None:
        now = self.clock.now()
        self._pending += [(now + step.after_s, step) for step in steps]
        self._pending.sort(key=lambda due: due[0])  # stable: the script's order within one instant

    def wait(self, timeout_s: float) -> list[Event]:
        """Advance the clock to the next event, at most by `timeout_s`, and return its events."""
        self.moved_bytes += self.bytes_per_wait
        due_s = self._pending[0][0] if self._pending else math.inf
        limit_s = self.clock.now() + timeout_s
        self.clock.advance(min(limit_s, due_s, self._broken_s) - self.clock.now())
        events = self._take_due()
        if self.error is not None and not events and self.clock.now() >= self._broken_s:
            raise self.error
        return events

    def _take_due(self) -> list[Event]:
        events = []
        while self._pending and self._pending[0][0] <= self.clock.now():
            at_s, step = self._pending.pop(0)
            if step.rank in self.alive:
                events.append(make_event(at_s, step.rank, step.kind, step.detail))
            if step.kind == "exited":
                self.alive.discard(step.rank)
        return events

    def confirm(self) -> None:
        """Do nothing: nothing is on its way."""

    def send(self, rank: int, frame: WireFrame[ToRank]) -> None:
        """Record the frame, and schedule the rank's steps that it triggers."""
        self.sent.append((self.clock.now(), rank, frame))
        message = frame.message
        answers = {CollectiveComplete: "complete", CollectiveBroken: "broken"}
        trigger = message.gate if isinstance(message, Release) else answers.get(type(message))
        self._schedule(step for step in self.script if (step.rank, step.on) == (rank, trigger))

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Record the ranks of the request."""
        del kind
        self.dumped.append(tuple(ranks))

    @property
    def processes(self) -> WorldProcesses:
        """The harness's processes of the world; there are none."""
        return WorldProcesses()

    def request(self, message: FaultRequest) -> None:
        """Record the request; for `UndoFaults`, schedule the event that reports completion."""
        match message:
            case PauseRank(rank, pause):
                self.paused.append((rank, pause))
            case PerformFault(_, rank, index):
                self.disturbed.append((rank, index))
            case UndoFaults(service):
                self.disturbed.append(None)
                done = {"service": service, "index": None, "error": ""}
                self._schedule([Step(min(self.alive, default=0), "answered", done)])

    def end(self, *, grace_s: float) -> Ending:
        """Return the events not yet returned, and the exit by SIGTERM of every remaining rank."""
        self.ended.append(grace_s)
        events = self._take_due()
        killed, self.alive = sorted(self.alive), set()
        exit_ = Exited(None, int(SIGTERM), cpu_s=0.1, peak_rss_bytes=1 << 20)
        exits = [Event(self.clock.now(), rank, exit_) for rank in killed]
        return Ending((*events, *exits), ())
