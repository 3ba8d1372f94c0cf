"""Decides when the clock of a world jumps: to the earliest timer, when only timers are left.

A jump is wrong if something could still have happened before that timer, because the test would
then see a timeout that no real run has. A jump therefore needs

* a quiescent world (`Quiescence`): no thread can run, and nothing is in flight.
* idle loops that have polled: a runtime's loop (gloo's, every 10 ms) sleeps between two polls,
  while other threads may wait for an effect of its next poll. The clock therefore first jumps to
  the loops' own timers. Only if no other thread runs then have the loops found nothing.
* a closed world (`open_ends`): no connection, pipe, lock or device outside can end a wait. Reading
  that costs milliseconds, so it is repeated only when processes or their descriptors have changed.
* no pending work of the harness: no event is unread, no rank is held, no rank has ended unnoticed.

In doubt the clock runs like the machine's, and the record has the reason and the time.

Threads that poll cause many small jumps. After a silent time, in which threads have only polled, a
short wait may end a little late (`slack_s`), so that several waits end at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.event import (
    Event,
    Exited,
    FaultAnswered,
    FaultChanged,
    Forked,
    Pause,
)
from pytest_multihost.core.model.event import now as real_clock
from pytest_multihost.core.model.messages import FaultRequest, PauseRank
from pytest_multihost.core.model.result import ServiceRecord
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import Action, Turn
from pytest_multihost.core.watch.kernel import Quiescence
from pytest_multihost.core.watch.observer import WorldObserver, with_gates
from pytest_multihost.extensions.clock.open_ends import open_ends
from pytest_multihost.extensions.clock.page import ClockPage, ClockWait
from pytest_multihost.extensions.clock.record import ClockDoubt, ClockRecord

FIRST_LOOK_S, LAST_LOOK_S = 0.001, 0.016
"""Real time between two checks of the world; doubled each time while the world moves."""

BUSY_SHARE = 0.5
"""Share of a CPU above which a process computes, so that its world need not be checked."""

DOUBT_S = 0.05
"""Real time between two readings of an open world."""

TOLD_S = 0.25
"""Minimum duration of a doubt in the record."""

MAX_DOUBTS = 16
"""Maximum number of doubts in the record."""

PROOF_S = 2.0
"""Real time for a proof, if a quiescent world has no timer before its deadline."""

IDLE_ROUNDS = 3
"""A runtime's loop is idle if it has found nothing this often in a row."""

SHORT_S = 1.1
"""Maximum length of a poller's wait."""

_POLLER_SHARE, _POLLER_SLACK_S = 0.01, 0.1
_RUNTIME_SHARE, _RUNTIME_SLACK_S = 0.05, 1.0


def slack_s(wait: ClockWait, silent_s: float) -> float:
    """Return how late a wait may end.

    Only a poller's wait may: a short one of a thread that has found nothing for `IDLE_ROUNDS` in a
    row. The main thread has less slack, because it may count its waits, or compare the time with
    its own timeout.

    Args:
        silent_s: For how long threads have only polled.
    """
    if wait.timeout_s > SHORT_S or wait.rounds < IDLE_ROUNDS:
        return 0.0
    if wait.tid == wait.pid:
        return min(_POLLER_SHARE * silent_s, _POLLER_SLACK_S)
    return min(_RUNTIME_SHARE * silent_s, _RUNTIME_SLACK_S)


def is_idle_loop(wait: ClockWait) -> bool:
    """Return whether a thread is a runtime's loop that has found nothing several times in a row."""
    return wait.is_loop and wait.rounds >= IDLE_ROUNDS


@dataclass(frozen=True, slots=True)
class Still:
    """A quiescent world.

    Attributes:
        turns: How often each thread has run.
    """

    waits: Mapping[int, ClockWait]
    turns: Mapping[int, int]

    @property
    def loops(self) -> Mapping[int, ClockWait]:
        """The waits of idle loops."""
        return {tid: each for tid, each in self.waits.items() if is_idle_loop(each)}

    @property
    def timers(self) -> Sequence[ClockWait]:
        """All timed waits except those of idle loops."""
        return [each for each in self.waits.values() if not is_idle_loop(each)]

    def next_s(self, silent_s: float) -> float | None:
        """Return the latest time for the earliest timer to end; None if there is no timer."""
        return min((each.due_s + slack_s(each, silent_s) for each in self.timers), default=None)


def have_looked(before: Still, now: Still) -> bool:
    """Return whether every idle loop has polled since `before`, and no other thread has run."""
    loops = now.loops
    if loops.keys() != before.loops.keys():
        return False
    if any(each.serial == before.waits[tid].serial for tid, each in loops.items()):
        return False
    others = {tid: turns for tid, turns in now.turns.items() if tid not in loops}
    return others == {tid: turns for tid, turns in before.turns.items() if tid not in loops}


def have_only_polled(before: Still, now: Still) -> bool:
    """Return whether all threads that have run since `before` have only polled.

    Such a thread has begun the same wait again, with the same timeout.
    """
    if before.turns.keys() != now.turns.keys():
        return False
    ran = [tid for tid, turns in now.turns.items() if turns != before.turns[tid]]
    pairs = [(before.waits.get(tid), now.waits.get(tid)) for tid in ran]
    return all(
        was is not None and wait is not None and wait.rounds > was.rounds for was, wait in pairs
    )


@dataclass(slots=True)
class ClockJumps:
    """Decides on the jumps of one world's clock, and performs them.

    Attributes:
        proof_s: Real time for a proof before a jump to the end of the world; 0 if the watchdog
            looks for none.
        interval_s: Maximum real time between two calls of `due_s`.
    """

    page: ClockPage
    observer: WorldObserver
    proof_s: float = PROOF_S
    interval_s: float = FIRST_LOOK_S
    _quiescence: Quiescence | None = None
    _last: Still | None = None
    _is_looking: bool = False
    _silent_since_s: float = 0.0
    _still_since_s: float | None = None
    _closed: object = None
    _open: tuple[str, ...] = ()
    _read_s: float = 0.0
    _open_s: float = 0.0
    _doubts: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    _jumped_s: float = 0.0

    def due_s(
        self, now: float, facts: Sequence[RankFacts], deadline_s: float, *, is_last: bool
    ) -> float | None:
        """Return the time to which the clock must jump now; None if it must not jump.

        Call it only if no event of a rank is unread.

        Args:
            facts: The facts from the ranks' events.
            deadline_s: The world's next deadline; the clock does not jump beyond it.
            is_last: Whether the world ends at that deadline. A jump there waits `proof_s`, because
                a proof of a hang, which takes real time, is more valuable than an early end.
        """
        still = self._still(now, facts)
        if still is None:
            self.interval_s = min(2 * self.interval_s, LAST_LOOK_S)
            if self._still_since_s is not None:
                self._count_doubts(now)
            self._still_since_s, self._is_looking = None, False
            return None
        self.interval_s = FIRST_LOOK_S
        before, self._last = self._last, still
        if before is None or not have_only_polled(before, still):
            self._silent_since_s = now
        if self._still_since_s is None:
            self._still_since_s, self._open_s = real_clock(), now
        timer_s = still.next_s(now - self._silent_since_s)
        wakes_s = min(_continued_s(facts), math.inf if timer_s is None else timer_s)
        if wakes_s >= deadline_s and is_last and real_clock() < self._still_since_s + self.proof_s:
            return None
        to_s = min(wakes_s, deadline_s)
        loops_s = max((each.due_s for each in still.loops.values()), default=now)
        have_found_nothing = self._is_looking and before is not None and have_looked(before, still)
        self._is_looking = now < loops_s < to_s and not have_found_nothing

        if not self._is_closed(now, facts, still):
            return None
        return loops_s if self._is_looking else to_s

    def due(self, turn: Turn) -> Sequence[Action]:
        """Return the jump that is due; it also resumes ranks whose pause ends by then."""
        to_s = self.due_s(turn.now, turn.facts, turn.deadline_s, is_last=turn.is_last)
        if to_s is None:
            return ()
        overdue = overdue_pauses(turn.facts, to_s)
        return [
            Action(
                perform=lambda _now: self.jump(to_s),
                to_server=tuple(PauseRank(rank, None) for rank in overdue),
                moves_at_s=to_s,
            )
        ]

    def jump(self, to_s: float) -> None:
        """Make the clock jump, and wake the threads whose timers have expired by then."""
        self._jumped_s += max(0.0, to_s - self.page.now())
        self.page.jump(to_s)
        self._still_since_s = None

    def in_world_time(self, event: Event) -> Event:
        """Return an event in the world's time; events of the server have the machine's."""
        is_of_server = isinstance(event.body, Exited | Forked | FaultAnswered)
        return replace(event, at_s=event.at_s + self.page.offset_s) if is_of_server else event

    def on_request(self, request: FaultRequest) -> FaultRequest:
        """Return a request in the machine's time, which the server uses."""
        if isinstance(request, PauseRank) and request.pause is not None:
            return replace(request, pause=self.in_machine_time(request.pause))
        return request

    def in_machine_time(self, pause: Pause) -> Pause | None:
        """Return a pause as the server must perform it.

        A pause without turns gets no end, because this object ends it when the clock jumps there.
        """
        if pause.until_s is None:
            return pause
        if not pause.takes_turns:
            return Pause()
        return replace(pause, until_s=pause.until_s - self.page.offset_s)

    def service_record(self, started_s: float, ended_s: float) -> ServiceRecord:
        """Return the record of a world that has ended."""
        return self.record().of_world(started_s, ended_s)

    def record(self) -> ClockRecord:
        """Return the clock's record so far."""
        doubts = (ClockDoubt(why, *times) for why, times in self._doubts.items())
        told = [each for each in doubts if each.for_s >= TOLD_S]
        told.sort(key=lambda each: -each.for_s)
        return ClockRecord(self.page.jumps, self._jumped_s, tuple(told[:MAX_DOUBTS]))

    def _still(self, now: float, facts: Sequence[RankFacts]) -> Still | None:
        """Return the world if it is quiescent and none of its timers has expired."""
        if any(each.pid is None for each in facts) or _acts_in_real_time(facts):
            return None
        if self._quiescence is None:
            self._quiescence = Quiescence(self.observer.local_pids(facts), self.observer.harness)
        if self.interval_s >= LAST_LOOK_S and self._quiescence.busiest_share() > BUSY_SHARE:
            return None  # a check would cost a computing world a thousand times more
        frozen = frozen_ranks(facts)
        may_run = {e.tid for e in self.page.waits() if is_idle_loop(e) or e.is_idle}
        found = self._quiescence.ask(may_run | self.page.helpers(), frozen)
        family = self._quiescence.family
        # A process that has ended unnoticed: its server is about to report it.
        if not found.is_quiescent or any(e.pid not in family for e in facts if not e.is_gone):
            return None
        waits = {
            each.tid: each
            for each in self.page.waits()
            if (each.tid in found.turns or (each.kind == "timer" and each.pid in family))
            and family.get(each.pid) not in frozen
        }
        if any(each.due_s <= now for each in waits.values()):
            self.page.wake()
            return None
        apart = self.page.helpers() | {tid for tid, each in waits.items() if each.is_idle}
        return Still(
            {tid: each for tid, each in waits.items() if tid not in apart},
            {tid: each for tid, each in found.turns.items() if tid not in apart},
        )

    def _is_closed(self, now: float, facts: Sequence[RankFacts], still: Still) -> bool:
        """Return whether only the world's own timers and threads can end its waits."""
        if self._quiescence is None or (self._open and real_clock() < self._read_s + DOUBT_S):
            return False
        doubts = self.page.doubts()
        closed = (self._quiescence.descriptors(), frozenset(still.turns), doubts)
        if self._open or closed != self._closed:
            shallow, _ = self.observer.shallow(now, facts)
            deep = replace(shallow, kernel=self.observer.deep(facts))
            frozen = frozen_ranks(facts)
            timed = {each.tid for each in self.page.waits()}
            timerfds = self.page.timerfds()
            world = with_gates(deep, facts)
            found = open_ends(world, timed=timed, timerfds=timerfds, frozen=frozen)
            self._note_doubts(now, (*found, *doubts))
            self._read_s, self._closed = real_clock(), closed
        return not self._open

    def _note_doubts(self, now: float, found: tuple[str, ...]) -> None:
        """Record why the clock may not jump."""
        self._count_doubts(now)
        self._open = found
        self.page.set_jumping(not found)

    def _count_doubts(self, now: float) -> None:
        """Add the time for which the clock could not jump, up to now."""
        for why in self._open:
            since_s, _, for_s = self._doubts.get(why, (self._open_s, 0.0, 0.0))
            self._doubts[why] = since_s, now, for_s + now - self._open_s
        self._open_s = now


def frozen_ranks(facts: Sequence[RankFacts]) -> frozenset[int]:
    """Return the ranks that a fault has stopped without turns to run."""
    return frozenset(rank for rank, pause in _pauses(facts) if not pause.takes_turns)


def overdue_pauses(facts: Sequence[RankFacts], now: float) -> frozenset[int]:
    """Return the ranks that a fault has stopped until a time in the past."""
    return frozenset(
        rank
        for rank, pause in _pauses(facts)
        if not pause.takes_turns and pause.until_s is not None and pause.until_s <= now
    )


def _continued_s(facts: Sequence[RankFacts]) -> float:
    """Return when the first of the stopped ranks continues."""
    ends_s = (pause.until_s for _, pause in _pauses(facts) if not pause.takes_turns)
    return min((each for each in ends_s if each is not None), default=math.inf)


def _acts_in_real_time(facts: Sequence[RankFacts]) -> bool:
    """Return whether a fault acts in real time: in turns, or outside its rank."""
    changes = _changes(facts)
    return any(
        (each.pause is not None and each.pause.takes_turns)
        or (each.service != "" and each.until_s is not None)
        for _, each in changes
    )


def _pauses(facts: Sequence[RankFacts]) -> Iterator[tuple[int, Pause]]:
    for rank, each in _changes(facts):
        if each.pause is not None:
            yield rank, each.pause


def _changes(facts: Sequence[RankFacts]) -> Iterator[tuple[int, FaultChanged]]:
    for each in facts:
        for event in each.active_faults:
            if isinstance(event.body, FaultChanged):
                yield each.rank, event.body
