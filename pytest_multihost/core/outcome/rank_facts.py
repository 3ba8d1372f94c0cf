"""The facts about one rank: a fold over the world's history, event by event."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pytest_multihost.core.model.event import (
    Done,
    Event,
    Exited,
    FaultChanged,
    Forked,
    Hello,
    Interrupted,
    Parked,
    PhaseEntered,
    ProgramReady,
    RankEventBody,
    Ready,
    ReadyWhen,
    Released,
    ReportMade,
    SubtestEnded,
    XfailMark,
)
from pytest_multihost.core.model.verdict import Phase


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The facts about one rank. Times are seconds on the monotonic clock.

    Attributes:
        phase: The last phase that it reached.
        parked_s: When its test body was over.
        runs_more: Whether code of the program runs when its process ends; see `Parked`.
        leaves: Whether its process ends when its test body is over.
        was_ended: Whether the harness ended its process.
        interrupted: An exception raised out of the test without a report, or the backend's failure.
        failure: The first report of a raise, or `interrupted`; a raise that xfail expects only if
            there is no other.
        released: Gates that were opened for it.
        is_being_killed: Whether a fault that ends its process has begun.
        active_faults: The "begun" changes of faults that are not over.
        last_event_s: When the rank itself last sent an event.
        can_dump: Whether it runs the plugin's code and can be asked for its stacks.
        ready_port: The TCP port that listens once the program of its role is ready; 0: it does not
            say when it is ready.
        program_ready_s: When that port was seen to listen.
        xfail_before_setup: The xfail mark that its test had before anything of it ran.
    """

    rank: int
    pid: int | None = None
    phase: Phase = "startup"
    can_dump: bool = False
    ready_s: float | None = None
    parked_s: float | None = None
    runs_more: bool = False
    leaves: bool = False
    done_s: float | None = None
    exited_s: float | None = None
    exit: Exited | None = None
    was_ended: bool = False
    failed_subtests_s: tuple[float, ...] = ()
    reports: tuple[ReportMade, ...] = ()
    interrupted: Interrupted | None = None
    failure: ReportMade | Interrupted | None = None
    failed_s: float | None = None
    released: frozenset[str] = frozenset()
    is_being_killed: bool = False
    active_faults: tuple[Event, ...] = ()
    last_event_s: float = 0.0
    ready_port: int = 0
    program_ready_s: float | None = None
    xfail_before_setup: XfailMark | None = None

    @property
    def is_unready(self) -> bool:
        """Whether it has said when its role is ready, and that has not come."""
        return bool(self.ready_port) and self.program_ready_s is None

    @property
    def has_begun(self) -> bool:
        """Whether it has entered the test's setup."""
        return self.phase != "startup"

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return self.exit is not None

    @property
    def is_past_body(self) -> bool:
        """Whether it will not take part in the test body any more."""
        return self.is_gone or self.parked_s is not None or self.interrupted is not None

    @property
    def is_finished(self) -> bool:
        """Whether its process has ended or only has to exit."""
        return self.is_gone or self.done_s is not None or self.interrupted is not None

    @property
    def waits_at_gate(self) -> bool:
        """Whether it is past its test body and waits for the controller to open the next gate."""
        if self.done_s is not None:
            return "exit" not in self.released
        return self.parked_s is not None and "teardown" not in self.released

    @property
    def is_in_harness(self) -> bool:
        """Whether its main thread is past the user's code, in its wait for a gate."""
        has_raised = self.interrupted is not None and "exit" not in self.released
        return self.waits_at_gate or has_raised

    @property
    def is_killed_as_planned(self) -> bool:
        """Whether a `kill` fault has ended its process."""
        by_signal = self.exit is not None and self.exit.signal is not None
        return by_signal and self.is_being_killed and not self.was_ended

    @property
    def has_died(self) -> bool:
        """Whether its process ended neither regularly after its release nor by the harness."""
        if self.exit is None or self.was_ended or self.is_killed_as_planned:
            return False
        if self.leaves:
            return self.exit.code != 0
        is_over = self.done_s is not None or self.interrupted is not None
        return not ("exit" in self.released and is_over and self.exit.code == 0)

    @property
    def is_skipped(self) -> bool:
        """Whether pytest skipped it, by mark or at run time."""
        return any(each.outcome == "skipped" and each.wasxfail is None for each in self.reports)

    @property
    def skip_reason(self) -> str:
        """Why it was skipped."""
        for each in self.reports:
            longrepr = each.report["longrepr"]
            if each.outcome == "skipped" and isinstance(longrepr, list):
                return str(longrepr[2]).removeprefix("Skipped: ")
        return "skipped"

    @property
    def xfail(self) -> XfailMark | None:
        """The xfail mark in force, as far as the rank has come."""
        marks = (each.xfail for each in self.reports if each.xfail is not None)
        return next(marks, self.xfail_before_setup)


def advance(facts: RankFacts, event: Event) -> RankFacts:
    """Return `facts` after `event` of the same rank."""
    changes = _changes(facts, event)
    if isinstance(event.body, RankEventBody):
        changes["last_event_s"] = event.at_s
    # Once for all changes: a copy of so many fields is most of an event's cost.
    return replace(facts, **changes) if changes else facts


_Changes = dict[str, Any]
"""New values of fields of `RankFacts`, by name."""


def _changes(facts: RankFacts, event: Event) -> _Changes:
    match event.body:
        case Forked(pid):
            return {"pid": pid}
        case Released(gate):
            return {"released": facts.released | {gate}}
        case Exited(by_harness=ended) as status:
            return {"exited_s": event.at_s, "exit": status, "was_ended": ended}
        case ReportMade() | Interrupted() | SubtestEnded() as result:
            return _result_changes(facts, result, event.at_s)
        case FaultChanged() as change:
            return _fault_changes(facts, event, change)
    return _progress_changes(event)


def _progress_changes(event: Event) -> _Changes:
    match event.body:
        case Hello():
            return {"can_dump": True}
        case Ready():
            return {"ready_s": event.at_s}
        case ReadyWhen(port):
            return {"ready_port": port}
        case ProgramReady():
            return {"program_ready_s": event.at_s}
        case PhaseEntered(phase, xfail):
            return {"phase": phase, **({"xfail_before_setup": xfail} if xfail else {})}
        case Parked(runs_more, leaves):
            return {"parked_s": event.at_s, "runs_more": runs_more, "leaves": leaves}
        case Done():
            return {"done_s": event.at_s, "phase": "shutdown"}
    return {}


def _result_changes(
    facts: RankFacts, result: ReportMade | Interrupted | SubtestEnded, at_s: float
) -> _Changes:
    changes: _Changes
    match result:
        case SubtestEnded("failed"):
            return {"failed_subtests_s": (*facts.failed_subtests_s, at_s)}
        case Interrupted():
            changes = {"interrupted": result}
            is_failure = facts.failure is None
        case ReportMade(outcome=outcome, error=error):
            changes = {"reports": (*facts.reports, result)}
            is_failure = outcome == "failed" or error is not None
            if isinstance(facts.failure, ReportMade):  # later ones only in place of an expected one
                is_failure = outcome == "failed" != facts.failure.outcome
        case _:
            return {}
    return {**changes, "failure": result, "failed_s": at_s} if is_failure else changes


def _fault_changes(facts: RankFacts, event: Event, change: FaultChanged) -> _Changes:
    others = tuple(
        each
        for each in facts.active_faults
        if not (isinstance(each.body, FaultChanged) and each.body.index == change.index)
    )
    if change.phase != "begun":
        return {"active_faults": others}
    return {
        "is_being_killed": facts.is_being_killed or change.kills,
        "active_faults": (*others, event),
    }


def fold_history(history: Iterable[Event], size: int) -> tuple[RankFacts, ...]:
    """Return the facts about each rank after `history`."""
    facts = [RankFacts(rank) for rank in range(size)]
    for event in history:
        facts[event.rank] = advance(facts[event.rank], event)
    return tuple(facts)


def describe_exit(status: Exited) -> str:
    """Return in words how a process ended, as in "was killed by SIGKILL"."""
    if status.signal is None:
        return f"exited with code {status.code}"
    try:
        return f"was killed by {signal.Signals(status.signal).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {status.signal}"
