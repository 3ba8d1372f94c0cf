"""When deep snapshots are taken in search of a proof: as often as needed, as seldom as possible.

A deep snapshot reads every thread and descriptor of the world. So it is taken only while shallow
ones show that all main threads stand still, and then once per interval of the proof.

This is the one place that says when a world is worth a deep snapshot, and `proof` the one that says
how far two of them must be apart: whatever finds out sooner that a world is quiescent belongs here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.proof import ProofState, Snapshot, is_still
from pytest_multihost.watch.compare import has_left_wait

EARLY_START_S = 4.0
"""How often a deep snapshot is taken of a world that was seen to stand still only once."""

SLACK_S = 0.02
"""How much too early a wakeup may come: timers of the event loop are not exact."""


@dataclass(slots=True)
class ProofSearch:
    """The search for a proof that one world hangs, from shallow snapshot to shallow snapshot.

    Attributes:
        state: How far the proof has come; its blockers say what may end a wait.
        last_deep: The last deep snapshot.
    """

    state: ProofState = field(default_factory=ProofState)
    last_deep: KernelSnapshot | None = None
    _early_start_s: float = 0.0

    @property
    def due_s(self) -> float:
        """When the next deep snapshot ends an interval; never as long as none has begun."""
        next_s = self.state.next_s
        return math.inf if next_s is None else next_s - SLACK_S

    def step(
        self,
        before: Snapshot | None,
        now: Snapshot,
        take_deep: Callable[[], KernelSnapshot],
        *,
        deadline_s: float,
    ) -> bool:
        """Take a deep snapshot if it is worth it; return whether the world is proven to hang.

        Args:
            before: The shallow snapshot before.
            now: A shallow snapshot.
            take_deep: Takes a deep one.
            deadline_s: When the world is ended in any case.
        """
        if not is_still(now, deadline_s=deadline_s) or not self._is_worth_it(before, now):
            self.state = ProofState()
            return False
        if self.state.last is None or now.kernel.at_s >= self.due_s:
            self.last_deep = take_deep()
            snapshot = replace(now, kernel=self.last_deep)
            self.state = self.state.after(snapshot, deadline_s=deadline_s)
        return self.state.is_proof

    def _is_worth_it(self, before: Snapshot | None, now: Snapshot) -> bool:
        """Return whether no main thread has left its wait since the last shallow snapshot.

        Once in a while a single shallow snapshot is enough to begin. That saves a quarter of a
        second, and costs a deep snapshot of a world that only happens to stand still.
        """
        if before is None:
            return False
        if self.state.last is None and now.kernel.at_s >= self._early_start_s:
            self._early_start_s = now.kernel.at_s + EARLY_START_S
            return True
        return not any(has_left_wait(rank, before, now) for rank in now.kernel.ranks)
