"""What is known of one rank: a fold over the world's history, event by event."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_multihost.model.event import SENT_BY_RANKS, Event, Exited
from pytest_multihost.model.verdict import Phase


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What is known of one rank. Times are seconds on the monotonic clock.

    Attributes:
        rank: Its index.
        pid: Its process.
        phase: How far it got.
        ready_s: When its backend was up.
        parked_s: When its test body was over.
        done_s: When its teardown was over.
        exited_s: When its process ended.
        exit: How its process ended.
        was_ended: Whether the harness ended its process.
        failed_subtests: Events of the user's subtests that failed.
        reports: Events of pytest's reports: setup, call, teardown.
        interrupted: What left the test without a report, or the backend's failure to start.
        released: Gates that were opened for it.
        kill: The beginning of the fault that was to end it, once that has begun.
        active_faults: Beginnings of the faults that are not over.
        last_event_s: When the rank itself last sent an event.
        can_dump: Whether it runs our code and can be asked for its stacks.
    """

    rank: int
    pid: int | None = None
    phase: Phase = "startup"
    can_dump: bool = False
    ready_s: float | None = None
    parked_s: float | None = None
    done_s: float | None = None
    exited_s: float | None = None
    exit: Exited | None = None
    was_ended: bool = False
    failed_subtests: tuple[Event, ...] = ()
    reports: tuple[Event, ...] = ()
    interrupted: Event | None = None
    released: frozenset[str] = frozenset()
    kill: Event | None = None
    active_faults: tuple[Event, ...] = ()
    last_event_s: float = 0.0

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
        """Whether it has nothing left to do but leave."""
        return self.is_gone or self.done_s is not None or self.interrupted is not None

    @property
    def waits_at_gate(self) -> bool:
        """Whether it has done its part and only waits for the controller to open the next gate."""
        if self.done_s is not None:
            return "exit" not in self.released
        return self.parked_s is not None and "teardown" not in self.released

    @property
    def is_killed_as_planned(self) -> bool:
        """Whether a `kill` fault has ended its process."""
        by_signal = self.exit is not None and self.exit.signal is not None
        return by_signal and self.kill is not None and not self.was_ended

    @property
    def has_died(self) -> bool:
        """Whether its process ended other than by leaving when released, or by the harness."""
        if self.exit is None or self.was_ended or self.is_killed_as_planned:
            return False
        is_over = self.done_s is not None or self.interrupted is not None
        return not ("exit" in self.released and is_over and self.exit.code == 0)

    @property
    def failure(self) -> Event | None:
        """The first report of a raise, expected by xfail or not, or what interrupted it."""
        for event in self.reports:
            if event.detail["outcome"] == "failed" or event.detail["error"] is not None:
                return event
        return self.interrupted

    @property
    def is_skipped(self) -> bool:
        """Whether pytest skipped it, by mark or at run time."""
        return any(
            event.detail["outcome"] == "skipped" and event.detail["wasxfail"] is None
            for event in self.reports
        )

    @property
    def xfail(self) -> Mapping[str, Any] | None:
        """The xfail mark in force, where the rank has reported one."""
        marks = [event.detail["xfail"] for event in self.reports]
        return next((mark for mark in marks if mark is not None), None)


def _subtest(facts: RankFacts, event: Event) -> RankFacts:
    if event.detail["outcome"] != "failed":
        return facts
    return replace(facts, failed_subtests=(*facts.failed_subtests, event))


def _exited(facts: RankFacts, event: Event) -> RankFacts:
    if not isinstance(event.body, Exited):
        return facts
    ended = event.body.by_harness
    return replace(facts, exited_s=event.at_s, exit=event.body, was_ended=ended)


def _fault(facts: RankFacts, event: Event) -> RankFacts:
    index, has_begun = event.detail["index"], event.detail["phase"] == "begun"
    others = tuple(each for each in facts.active_faults if each.detail["index"] != index)
    kill = event if event.detail.get("kills") and has_begun else facts.kill
    return replace(facts, kill=kill, active_faults=(*others, event) if has_begun else others)


_CHANGES: Mapping[str, Callable[[RankFacts, Event], RankFacts]] = {
    "forked": lambda facts, event: replace(facts, pid=event.detail["pid"]),
    "hello": lambda facts, _: replace(facts, can_dump=True),
    "ready": lambda facts, event: replace(facts, ready_s=event.at_s),
    "phase": lambda facts, event: replace(facts, phase=event.detail["phase"]),
    "report": lambda facts, event: replace(facts, reports=(*facts.reports, event)),
    "subtest": _subtest,
    "parked": lambda facts, event: replace(facts, parked_s=event.at_s),
    "done": lambda facts, event: replace(facts, done_s=event.at_s, phase="shutdown"),
    "interrupted": lambda facts, event: replace(facts, interrupted=event),
    "exited": _exited,
    "fault": _fault,
    "released": lambda facts, event: replace(
        facts, released=facts.released | {event.detail["gate"]}
    ),
}


def advance(facts: RankFacts, event: Event) -> RankFacts:
    """Return `facts` after `event` of the same rank."""
    change = _CHANGES.get(event.kind)
    if event.kind in SENT_BY_RANKS:
        facts = replace(facts, last_event_s=event.at_s)
    return facts if change is None else change(facts, event)


def fold_history(history: Iterable[Event], size: int) -> tuple[RankFacts, ...]:
    """Return what is known of each rank after `history`."""
    facts = [RankFacts(rank) for rank in range(size)]
    for event in history:
        facts[event.rank] = advance(facts[event.rank], event)
    return tuple(facts)


def describe_exit(status: Exited) -> str:
    """Say how a process ended, as in "was killed by SIGKILL"."""
    if status.signal is None:
        return f"exited with code {status.code}"
    try:
        return f"was killed by {signal.Signals(status.signal).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {status.signal}"
