"""Whether a world hangs, by proof: no wait in it can end before the deadline.

The argument has four parts.

1. Every thread of every process of the world waits, and for each wait we can name all that could
   end it: a timer, another thread, a peer of a socket, the writer of a pipe, the holder of a lock,
   a signal (`blockers`).
2. The world is closed: each of these is itself a waiting thread of the world, or a timer that
   expires only after the deadline. Anything that is outside, may be outside or cannot be read
   counts as something that may end the wait, a *blocker* of the proof: a false report of a hang
   costs more than waiting for the deadline.
3. So none of the waits can be the first to end: a deadlock. That is a stable property: once it
   holds it holds for good, so it need not be caught at one instant.
4. But the parts of a snapshot are read one after the other, and a wakeup could be missed between
   two reads. A second snapshot confirms the first: a thread that has left its wait in between has
   been on a processor, which changes its `wait_key` for good (`Interval.has_not_moved`).

How long to wait for the second depends on the threads that may move without ending a wait: threads
that poll, of a runtime or in an operation. `SHORT_S` is enough if the world is *settled* then: it
is quiescent, no thread has run except the polling ones, and each of these has had its turn, and
then another one for the effects of the first (`has_settled`). A starving thread has had no turn,
so on a loaded machine this takes as long as it must. A world that never settles, say because a
thread spins in an operation, needs two intervals of `INTERVAL_S` in a row. So does one in which all
members have entered an operation, which then should have ended: something unknown may be under way.

A deep snapshot reads every thread and descriptor of the world. So `ProofSearch` takes one only
while shallow ones show that all main threads stand still, and then at most once per interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.process import KernelSnapshot, Thread
from pytest_multihost.core.proof.blockers import blockers
from pytest_multihost.core.proof.snapshot import Snapshot, has_left_wait
from pytest_multihost.core.proof.system_calls import FUTEXES
from pytest_multihost.core.proof.thread_blockers import waits_for_harness
from pytest_multihost.core.proof.threads import DEAD

SHORT_S = 0.1
"""How far two deep snapshots of a settled world must be apart.

Runtimes poll every 10 ms (gloo's loops, torch's FileStore). Slower ones have had no two turns by
then, and delay the proof."""

INTERVAL_S = 1.0
"""How far two deep snapshots must be apart in a world that does not settle."""

_WAITS_S = (SHORT_S,) * 6 + (3 * SHORT_S,) * 3
"""Time from each deep snapshot to the next; then `INTERVAL_S`, because snapshots are costly.

On a loaded machine a settled world often seems unsettled: a thread of a runtime has run."""

_SOON_S = 0.1
"""A timer that strikes so soon after a snapshot may already have struck."""

_TURNS = 2

_ENOUGH = 0.9
"""Part of an interval that is enough: snapshots taken every second are never exactly on time."""

EARLY_START_S = 4.0
"""How often a deep snapshot is taken after only one shallow snapshot of a still world."""

_SMALL = 16
"""The same for how many ranks at most."""

SLACK_S = 0.02
"""How much too early a wakeup may come: the event loop's timers are not exact."""

Turns = Mapping[int, int]
"""How often each thread of a world has run."""

AskTurns = Callable[[Collection[int]], Turns | None]
"""Asks whether a world is quiescent except for some threads; returns its turns, or None if not."""


@dataclass(frozen=True, slots=True)
class ProofState:
    """The progress of a proof; feed it with deep snapshots.

    Attributes:
        last: The snapshot at which the current interval began.
        quiet: Number of intervals in a row, up to now, without a blocker.
        blockers: The blockers of the last interval: one sentence each.
        is_settled: Whether there is no blocker, and the world is settled.
        due_s: When the next snapshot is worth its cost.
        looks: Number of snapshots that have been taken.
    """

    last: Snapshot | None = None
    quiet: int = 0
    blockers: tuple[str, ...] = ()
    is_settled: bool = False
    due_s: float = math.inf
    looks: int = 0

    def is_likely(self, deadline_s: float) -> bool:
        """Return whether only movement can keep the next snapshot from being a proof."""
        return self.last is not None and not blockers(self.last, self.last, deadline_s=deadline_s)

    @property
    def is_proof(self) -> bool:
        """Whether it has been shown that no wait can end before the deadline."""
        return self.is_settled or self.quiet >= 2  # noqa: PLR2004 - the definition of a proof

    def after(
        self, now: Snapshot, *, deadline_s: float, ask_turns: AskTurns = lambda _: None
    ) -> ProofState:
        """Return the state after one more snapshot; one taken too early changes nothing."""
        if self.last is None:
            return self._begun(now)
        elapsed_s = now.kernel.at_s - self.last.kernel.at_s
        if elapsed_s < SHORT_S * _ENOUGH:
            return self
        found = blockers(self.last, now, deadline_s=deadline_s)
        is_settled = not found and has_settled(self.last, now, ask_turns, deadline_s=deadline_s)
        if found or elapsed_s >= INTERVAL_S * _ENOUGH:
            quiet = 0 if found or elapsed_s < INTERVAL_S * _ENOUGH else self.quiet + 1
            begun = self._begun(now)
            return replace(begun, quiet=quiet, blockers=found, is_settled=is_settled)
        begun = self._begun(now if self.looks < len(_WAITS_S) else self.last)
        return replace(
            self, blockers=(), is_settled=is_settled, due_s=begun.due_s, looks=begun.looks
        )

    def _begun(self, now: Snapshot) -> ProofState:
        """Return the state in which an interval begins."""
        wait_s = _WAITS_S[self.looks] if self.looks < len(_WAITS_S) else INTERVAL_S
        due_s = now.kernel.at_s + wait_s - min(SLACK_S, wait_s * (1.0 - _ENOUGH))
        return ProofState(now, due_s=due_s, looks=self.looks + 1)


def has_settled(before: Snapshot, now: Snapshot, ask_turns: AskTurns, *, deadline_s: float) -> bool:
    """Return whether an interval without blockers need not be longer.

    Args:
        before: The deep snapshot at its beginning.
        deadline_s: When the world is ended in any case.
    """
    if before.is_disturbed or now.is_disturbed or any(now.complete_operations()):
        return False
    return has_rested(before, now, ask_turns, deadline_s=deadline_s)


def has_rested(before: Snapshot, now: Snapshot, ask_turns: AskTurns, *, deadline_s: float) -> bool:
    """Return whether the world is quiescent, and only threads that poll have run since `before`.

    Each of these has found nothing in two turns. The arguments are those of `has_settled`.
    """
    polling: set[int] = set()
    asleep: dict[int, int] = {}
    for was, thread, is_harness in _threads(before, now):
        turns = thread.runs - was.runs if was is not None else 0
        if is_harness or thread.tid in now.in_turns:
            polling.add(thread.tid)
        elif was is None or thread.state != "S" or thread.call == "running":
            return False
        elif turns == 0 and not thread.ticks:  # its server may be about to end
            if polls(thread) and thread.ends_by(now.kernel.at_s + _SOON_S):
                return False
            # Shortly before the deadline any wait may be the last of many short ones.
            if not thread.ends_by(deadline_s) and thread.ends_by(deadline_s + 2 * INTERVAL_S):
                return False
            asleep[thread.tid] = thread.runs
        elif polls(thread) and turns < _TURNS:
            return False
        else:
            polling.add(thread.tid)
    turns_now = ask_turns(polling)
    return turns_now is not None and asleep.items() <= turns_now.items()


def pollers(before: Turns, now: Turns) -> frozenset[int] | None:
    """Return the threads that poll, if no others have run between two moments; else None.

    A thread that polls has found nothing in two turns: neither by itself nor as an effect of its
    first turn. A thread that has had a single turn may have begun something.
    """
    ran = {tid: runs - before[tid] for tid, runs in now.items() if tid in before}
    if before.keys() != now.keys() or any(runs == 1 for runs in ran.values()):
        return None
    return frozenset(tid for tid, runs in ran.items() if runs >= _TURNS)


def polls(thread: Thread) -> bool:
    """Return whether a thread may find something when its wait times out.

    A thread that waits in a futex is woken by the thread that has something for it, and only
    updates its own records when it times out.
    """
    return thread.call not in FUTEXES


def _threads(before: Snapshot, now: Snapshot) -> Iterator[tuple[Thread | None, Thread, bool]]:
    """Yield each living thread, as it was and as it is, and whether the harness may wake it."""
    for process in now.kernel.processes:
        last = before.kernel.process(process.pid)
        earlier = {each.tid: each for each in last.threads} if last is not None else {}
        for thread in process.threads:
            if thread.state not in DEAD:
                yield earlier.get(thread.tid), thread, waits_for_harness(process, thread)


def is_still(now: Snapshot, *, deadline_s: float) -> bool:
    """Return whether a shallow snapshot shows that a deep one is worth its cost.

    Every main thread is in a wait that does not end by itself before the deadline, or in an
    operation.
    """
    return all(
        now.awaited_operations(process.rank, main.tid)
        or (main.state == "S" and (main.ends_s is None or main.ends_s > deadline_s))
        or (main.state == "S" and now.failing_starts(process.rank, main.tid))
        for process in now.kernel.processes
        if (main := process.main) is not None and not process.is_dead
    )


@dataclass(slots=True)
class ProofSearch:
    """The search for a proof that one world hangs, one step per shallow snapshot.

    Attributes:
        state: The progress of the proof; its blockers name the events that may end a wait.
    """

    state: ProofState = field(default_factory=ProofState)
    last_deep: KernelSnapshot | None = None
    _early_start_s: float = 0.0

    def step(
        self,
        before: Snapshot | None,
        now: Snapshot,
        take_deep: Callable[[], KernelSnapshot],
        ask_turns: AskTurns = lambda _: None,
        *,
        deadline_s: float,
    ) -> bool:
        """Take a deep snapshot if it is worth its cost; return whether a hang is proven.

        Args:
            ask_turns: Asks whether the world is quiescent.
            deadline_s: When the world is ended in any case.
        """
        at_s = now.kernel.at_s
        if before is None or not is_still(now, deadline_s=deadline_s):
            self.state = ProofState()
            return False
        # Once in a while a single shallow snapshot is enough. That saves some time, and
        # costs a deep snapshot of a world that may only be still by chance. A large world needs
        # longer to come to rest, and a deep snapshot of it takes longer than a second shallow one.
        is_small = len(now.kernel.ranks) <= _SMALL
        if is_small and self.state.last is None and at_s >= self._early_start_s:
            self._early_start_s = at_s + EARLY_START_S
        elif any(has_left_wait(rank, before, now) for rank in now.kernel.ranks):
            self.state = ProofState()
            return False
        if self.state.last is None or at_s >= self.state.due_s:
            self.last_deep = take_deep()
            snapshot = replace(now, kernel=self.last_deep)
            self.state = self.state.after(snapshot, deadline_s=deadline_s, ask_turns=ask_turns)
        return self.state.is_proof
