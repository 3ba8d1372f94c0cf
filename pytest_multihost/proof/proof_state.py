"""Whether a world hangs, by proof: no wait in it can end before the deadline.

The argument has four parts.

1. Every thread of every process of the world waits, and for each wait we can name all that could
   end it: a timer, another thread, a peer of a socket, the writer of a pipe, the holder of a lock,
   a signal (`blockers`, `thread_blockers`, `descriptor_blockers`).
2. The world is closed: each of these is itself a waiting thread of the world, or a timer that
   expires only after the deadline. Anything that is outside, may be outside or cannot be read
   counts as something that may end the wait, a *blocker* of the proof: a false report of a hang
   costs more than waiting for the deadline.
3. So none of the waits can be the first to end: a deadlock. That is a stable property: once it
   holds it holds for good, so it need not be caught at one instant.
4. But the parts of a snapshot are read one after the other, and a wakeup could be missed between
   two reads. A second snapshot confirms the first: a thread that has left its wait in between has
   been on a processor, which changes its `wait_key` for good (`Interval.has_not_moved`).

Two intervals in a row are needed, each of `INTERVAL_S`: data that have left one queue and not
reached the next are in no table (delayed acknowledgements take up to 0.04 s, retransmissions 0.2 s
and more), a runtime's thread that polls every half second may be between two polls, and a process
that is exiting has no waits any more.

A deep snapshot reads every thread and descriptor of the world. So `ProofSearch` takes one only
while shallow ones show that all main threads stand still, and then once per interval. Code that
detects earlier that a world is quiescent belongs there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.proof.blockers import blockers
from pytest_multihost.proof.snapshot import Snapshot, has_left_wait

INTERVAL_S = 1.0
"""How far two deep snapshots must be apart to show anything."""

_ENOUGH = 0.9
"""Part of an interval that is enough: snapshots taken every second are never exactly on time."""

EARLY_START_S = 4.0
"""How often a deep snapshot is taken after only one shallow snapshot of a still world."""

SLACK_S = 0.02
"""How much too early a wakeup may come: the event loop's timers are not exact."""


@dataclass(frozen=True, slots=True)
class ProofState:
    """The progress of a proof; feed it with deep snapshots at least `INTERVAL_S` apart.

    Attributes:
        last: The last snapshot that counted.
        quiet: Number of intervals in a row, up to now, without a blocker.
        blockers: The blockers of the last interval: one sentence each.
    """

    last: Snapshot | None = None
    quiet: int = 0
    blockers: tuple[str, ...] = ()

    @property
    def is_proof(self) -> bool:
        """Whether two intervals in a row have shown that no wait can end before the deadline."""
        return self.quiet >= 2  # noqa: PLR2004 - the definition of a proof

    def after(self, now: Snapshot, *, deadline_s: float) -> ProofState:
        """Return the state after one more snapshot; one that comes too early changes nothing."""
        if self.last is None:
            return ProofState(now)
        if now.kernel.at_s < self.last.kernel.at_s + INTERVAL_S * _ENOUGH:
            return self
        found = blockers(self.last, now, deadline_s=deadline_s)
        return ProofState(now, 0 if found else self.quiet + 1, found)


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
        state: The progress of the proof; its blockers say what may end a wait.
        last_deep: The last deep snapshot.
    """

    state: ProofState = field(default_factory=ProofState)
    last_deep: KernelSnapshot | None = None
    _early_start_s: float = 0.0

    @property
    def due_s(self) -> float:
        """When the next deep snapshot ends an interval; infinite if no interval has begun."""
        last = self.state.last
        return math.inf if last is None else last.kernel.at_s + INTERVAL_S - SLACK_S

    def step(
        self,
        before: Snapshot | None,
        now: Snapshot,
        take_deep: Callable[[], KernelSnapshot],
        *,
        deadline_s: float,
    ) -> bool:
        """Take a deep snapshot if it is worth its cost; return whether a hang is proven.

        Args:
            before: The shallow snapshot before.
            now: A shallow snapshot.
            take_deep: Takes a deep one.
            deadline_s: When the world is ended in any case.
        """
        at_s = now.kernel.at_s
        if before is None or not is_still(now, deadline_s=deadline_s):
            self.state = ProofState()
            return False
        # Once in a while a single shallow snapshot is enough. That saves a quarter of a second, and
        # costs a deep snapshot of a world that may only be still by chance.
        if self.state.last is None and at_s >= self._early_start_s:
            self._early_start_s = at_s + EARLY_START_S
        elif any(has_left_wait(rank, before, now) for rank in now.kernel.ranks):
            self.state = ProofState()
            return False
        if self.state.last is None or at_s >= self.due_s:
            self.last_deep = take_deep()
            snapshot = replace(now, kernel=self.last_deep)
            self.state = self.state.after(snapshot, deadline_s=deadline_s)
        return self.state.is_proof
