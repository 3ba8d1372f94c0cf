"""Decide when a rank that a fault holds at a point may go on.

It goes on when holding it longer would change nothing: every other rank waits, and none can move
except by a timer that expires after the end of the hold. `Quiescence` proves this from the
scheduler's data. Some programs never come to rest, because they poll for an action that the held
rank has not done yet. Their ranks count as waiting once they have done nothing except poll for
`POLLS_S`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_multihost.core.model.event import (
    Event,
    Exited,
    FaultChanged,
    Hold,
    HoldEnded,
    ReleaseReason,
)
from pytest_multihost.core.model.event import now as clock
from pytest_multihost.core.model.messages import FaultPerformed
from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.services import Action
from pytest_multihost.core.watch import WorldObserver
from pytest_multihost.core.watch.kernel import Quiescence

INTERVAL_S = 0.005
"""The longest time between two checks of the other ranks, if checks are cheap enough."""

_LEAST_S = 0.001
"""The shortest time between two checks."""

_SHARE = 0.25
"""The longest delay of the next check, as a share of the time since the last hold began."""

POLLS_S = 0.3
"""How long the other ranks must have done nothing except poll.

Loops sleep 1 to 100 ms between two polls, and act in the first poll that finds the awaited thing.
A rank that only sleeps between two steps of its own must have woken up at least once, however long
that takes."""

MAX_S = 10.0
"""The longest hold, unless its fault says otherwise."""

_LOOK_S = 0.02
"""Time between two whole checks of a world whose threads run all the time."""

_COST = 4
"""Time to the next check, as a multiple of a check's processor time, so as not to starve the world.
"""

_TRIES = 3
"""How often a quiescence check is repeated if only a short run of a thread made it fail.

gloo's threads wake up every ten milliseconds, each for some microseconds."""

_POLL_S = 0.3
"""A wait in an operation counts as part of a polling loop if a timer ends it within this time."""

_BUSY = 0.1
"""Share of a processor, for each rank, above which some rank does more than poll."""

_PRESSED_S = 60.0
"""Timeouts up to this are the program's own; those of a runtime are minutes long."""

_RESTS = 0.5
"""Least share of the checks at which a rank that only polls is asleep."""


@dataclass(slots=True)
class _HeldThread:
    """One thread that a fault holds.

    Attributes:
        index: The fault's number in the world.
        is_released: Whether the rank has been sent its release.
    """

    rank: int
    index: int
    since_s: float
    hold: Hold
    is_released: bool = False

    def ends_s(self, deadline_s: float) -> float:
        """Return when the hold ends at the latest: after half of the time left to the deadline."""
        longest_s = MAX_S if self.hold.max_s is None else self.hold.max_s
        left_s = (deadline_s - self.since_s) / 2
        return self.since_s + max(self.hold.min_s, min(longest_s, left_s))


@dataclass(frozen=True, slots=True)
class HoldEnd:
    """A rank that is to go on.

    Attributes:
        index: The number of the fault that holds it.
        is_pressed: Whether another rank's wait has a timeout of seconds.
    """

    rank: int
    index: int
    reason: ReleaseReason
    is_pressed: bool = False


@dataclass(frozen=True, slots=True)
class Glimpse:
    """The state of a rank that is not held, at one check.

    Attributes:
        waits: Whether its main thread is in an operation, or in a wait that no timer ends before
            the hold is over.
        rests: Whether its main thread is asleep.
        turns: How often its main thread has been put on a processor.
        steps: Changes with every step of the rank: its last event, the operations it has entered.
        is_pressed: Whether its operation has a timeout of at most `_PRESSED_S`.
        looks: Whether it is in an operation and polls for the end of that.
    """

    waits: bool
    rests: bool
    turns: int
    steps: tuple[object, ...]
    is_pressed: bool = False
    looks: bool = False


def is_unchanged(before: Mapping[int, Glimpse], seen: Mapping[int, Glimpse]) -> bool:
    """Return whether no rank has done anything except poll between two moments of quiescence."""
    return seen.keys() == before.keys() and all(
        each.steps == before[rank].steps and (each.looks or each.turns == before[rank].turns)
        for rank, each in seen.items()
    )


def have_looked(before: Mapping[int, Glimpse], seen: Mapping[int, Glimpse]) -> bool:
    """Return whether all polling ranks have polled between two moments.

    If one has not, the thing it waits for may have happened while it was asleep.
    """
    return all(each.turns != before[rank].turns for rank, each in seen.items() if each.looks)


@dataclass(slots=True)
class HoldWatch:
    """The checks of a world since a rank last did more than wait or poll.

    Attributes:
        since_s: When that was.
        used_ns: Processor time of the world until then.
        first: The first check.
        looks: The number of checks since.
        rests: At how many of them each rank was asleep or waited.
        asleep: How often each rank had been on a processor when it was first found asleep.
    """

    since_s: float
    used_ns: int
    first: Mapping[int, Glimpse]
    looks: int = 0
    rests: dict[int, int] = field(default_factory=dict)
    asleep: dict[int, int] = field(default_factory=dict)

    def add(self, seen: Mapping[int, Glimpse]) -> bool:
        """Add a check; return False if a rank has done a step, so that a new watch must begin."""
        if seen.keys() != self.first.keys():
            return False
        if any(each.steps != self.first[rank].steps for rank, each in seen.items()):
            return False
        self.looks += 1
        for rank, each in seen.items():
            self.rests[rank] = self.rests.get(rank, 0) + (each.waits or each.rests)
            if each.rests:
                self.asleep.setdefault(rank, each.turns)
        return True

    def verdict(
        self, now: float, used_ns: int, seen: Mapping[int, Glimpse]
    ) -> ReleaseReason | None:
        """Return the reason for a release if all ranks only wait or poll; None if not.

        Args:
            used_ns: Processor time of the world until now.
            seen: The last check.
        """
        elapsed_s = now - self.since_s
        is_busy = used_ns - self.used_ns > _BUSY * len(seen) * elapsed_s * 1e9
        if elapsed_s < POLLS_S or is_busy:
            return None
        if any(self.rests.get(rank, 0) < _RESTS * self.looks for rank in seen):
            return None
        polling = {rank: each.turns for rank, each in seen.items() if not each.waits}
        # A rank without a turn since it was first found asleep has not polled since.
        if any(turns == self.asleep.get(rank, turns) for rank, turns in polling.items()):
            return None
        return "others poll" if polling else "others wait"


@dataclass(slots=True)
class HeldRanks:
    """The ranks of one world that faults hold.

    Attributes:
        observer: Takes the world's snapshots; None: only time ends a hold.
    """

    observer: WorldObserver | None = None
    _held: list[_HeldThread] = field(default_factory=list)
    _quiescence: Quiescence | None = None
    _watched: HoldWatch | None = None
    _still: Mapping[int, Glimpse] | None = None
    _known: dict[int, set[tuple[object, ...]]] = field(default_factory=dict)
    _looked_s: float = 0.0
    _next_s: float = 0.0
    _is_pressed: bool = False

    @property
    def is_active(self) -> bool:
        """Whether a rank is held, or has not reported yet that it has gone on."""
        return bool(self._held)

    @property
    def interval_s(self) -> float:
        """The longest time from one call of `due` to the next."""
        if all(each.is_released for each in self._held):
            return math.inf
        return max(_LEAST_S, min(INTERVAL_S, self._next_s - clock()))

    def note(self, event: Event) -> None:
        """Record an event: a hold has begun or ended, or a held rank has exited."""
        match event.body:
            case FaultChanged(phase="begun", hold=Hold() as hold, index=index):
                self._held.append(_HeldThread(event.rank, index, event.at_s, hold))
                self._watched = self._still = None
                self._next_s = 0.0
            case FaultChanged(phase="ended", index=index):
                over = (e for e in self._held if (e.rank, e.index) == (event.rank, index))
                for each in sorted(over, key=lambda each: not each.is_released)[:1]:
                    self._held.remove(each)
            case Exited():
                self._held = [each for each in self._held if each.rank != event.rank]

    def due(self, now: float, facts: Sequence[RankFacts], deadline_s: float) -> tuple[HoldEnd, ...]:
        """Return which ranks may go on now, provided that no event is unread.

        Args:
            deadline_s: When the world is ended at the latest.
        """
        held = [each for each in self._held if not each.is_released]
        over = [each for each in held if now >= each.ends_s(deadline_s)]
        ripe = [each for each in held if now >= each.since_s + each.hold.min_s]
        if not ripe:
            return ()
        ends_s = max(each.ends_s(deadline_s) for each in held)
        reason = self._reason(now, facts, {each.rank for each in held}, ends_s)
        if reason is not None:
            return tuple(HoldEnd(e.rank, e.index, reason, self._is_pressed) for e in ripe)
        return tuple(HoldEnd(each.rank, each.index, "max_s") for each in over)

    def let_go(self, release: HoldEnd) -> None:
        """Record that a rank has been sent its release."""
        for each in self._held:
            if (each.rank, each.index) == (release.rank, release.index) and not each.is_released:
                each.is_released = True
                return

    def _reason(
        self, now: float, facts: Sequence[RankFacts], held: Collection[int], ends_s: float
    ) -> ReleaseReason | None:
        """Return why held ranks may go on now, None if they may not."""
        if any(each.is_past_body for each in facts if each.rank in held):
            return "others have left"  # also if a thread is held after its rank's test is over
        others = [each for each in facts if each.rank not in held]
        present = {each.rank for each in others if not (each.is_gone or each.is_past_body)}
        if not present:
            return "others have left" if others else "others wait"
        if self.observer is None or now < self._next_s:
            return None
        if self._quiescence is None:
            self._quiescence = Quiescence(self.observer.local_pids(facts), self.observer.harness)
        has_run = self._quiescence.busiest_share() > 0
        is_whole = not has_run or now >= self._looked_s + _LOOK_S
        began_s = time.thread_time()
        reason = self._look(now, facts, present, ends_s, is_whole=is_whole)
        cost_s = time.thread_time() - began_s
        if is_whole:
            self._looked_s = now
        held_s = now - max(each.since_s for each in self._held if not each.is_released)
        self._next_s = clock() + max(_COST * cost_s, min(INTERVAL_S, _SHARE * held_s))
        return reason

    def _look(
        self,
        now: float,
        facts: Sequence[RankFacts],
        present: Collection[int],
        ends_s: float,
        *,
        is_whole: bool,
    ) -> ReleaseReason | None:
        """Check the ranks that are not held; return the reason for a release if all of them wait.

        A check that is not whole ends early if a slot page shows that its rank's main thread waits
        for no operation.
        """
        observer, quiescence = self.observer, self._quiescence
        if observer is None or quiescence is None:
            return None
        pids = observer.local_pids(facts)
        pages = observer.waiting(present)
        if not is_whole and any(pids.get(e) not in threads for e, (_, threads) in pages.items()):
            return None
        snapshot, _ = observer.shallow(now, facts)
        seen = {rank: self._glimpse(snapshot, facts[rank], ends_s) for rank in sorted(present)}
        self._is_pressed = any(each.is_pressed for each in seen.values())
        if observer.remote is None and all(each.waits for each in seen.values()):
            turns = {pids[rank]: each.turns for rank, each in seen.items()}
            # A page that is the same before and after was also so at the moment of quiescence.
            is_still = _is_quiescent(quiescence, turns) and observer.waiting(present) == pages
            if is_still and self._nobody_moves(seen):
                return "others wait"
        if not is_whole:
            return None
        if self._watched is None or not self._watched.add(seen):
            self._watched = HoldWatch(now, quiescence.used_ns, seen)
        return self._watched.verdict(now, quiescence.used_ns, seen)

    def _nobody_moves(self, seen: Mapping[int, Glimpse]) -> bool:
        """Return whether no poll of a rank can succeed, given that the world is quiescent now."""
        if not any(each.looks for each in seen.values()):
            return True
        if self._still is None or not is_unchanged(self._still, seen):
            self._still = seen
            return False
        return have_looked(self._still, seen)

    def _glimpse(self, snapshot: Snapshot, facts: RankFacts, ends_s: float) -> Glimpse:
        """Return the state of a rank in a shallow snapshot."""
        process = snapshot.kernel.ranks.get(facts.rank)
        main = process.main if process is not None else None
        operations = next(e for e in snapshot.operations if e.rank == facts.rank)
        known = self._known.setdefault(facts.rank, set())
        known |= {_kind_of_step(each) for each in operations.open}
        steps = (facts.last_event_s, tuple(operations.entered.items()), len(known))
        if main is None:
            return Glimpse(waits=False, rests=False, turns=0, steps=steps)
        rests = main.state == "S" and main.call != "running"
        awaited = snapshot.awaited_operations(facts.rank, main.tid)
        waits = bool(awaited) or (rests and not main.ends_by(ends_s))
        is_pressed = any(e.timeout_s is not None and e.timeout_s <= _PRESSED_S for e in awaited)
        looks = bool(awaited) and rests and main.ends_by(snapshot.kernel.at_s + _POLL_S)
        return Glimpse(waits, rests, main.runs, steps, is_pressed=is_pressed, looks=looks)


def _is_quiescent(quiescence: Quiescence, turns: Mapping[int, int]) -> bool:
    """Return whether a world is quiescent and its main threads have not run since the snapshot.

    Args:
        turns: How often each main thread had run at the snapshot.
    """
    for _ in range(_TRIES):
        found = quiescence.ask()
        if any(found.turns.get(tid, runs) != runs for tid, runs in turns.items()):
            return False
        if found.is_quiescent:
            return turns.keys() <= found.turns.keys()
    return False


def _kind_of_step(operation: Operation) -> tuple[object, ...]:
    """Return a key; an operation is a step if its key is new, so a repeated wait is none."""
    if operation.kind == "wait":
        return operation.name, operation.detail, operation.frame
    return operation.name, operation.detail, operation.group_key, operation.peer, operation.sequence


def release_action(held: HeldRanks, release: HoldEnd) -> Action:
    """Return the action that lets a held rank go on."""
    return Action(
        perform=lambda _now: held.let_go(release),
        events=((release.rank, HoldEnded(release.index, release.reason, release.is_pressed)),),
        to_ranks=((release.rank, FaultPerformed(release.index, "")),),
        is_certain=release.reason == "max_s",
    )
