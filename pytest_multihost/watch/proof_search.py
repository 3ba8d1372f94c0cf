"""Looks for a proof that a world hangs, as closely as it must and as seldom as it can."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.proof import Snapshot
from pytest_multihost.proof.proof_state import INTERVAL_S, ProofState, is_still

EAGER_S = 4.0
"""How often a world is looked at closely that was seen to stand still only once."""

_SLACK_S = 0.02


class Proc(Protocol):
    """Sees the processes of one world."""

    def shallow_snapshot(self) -> KernelSnapshot:
        """See the main threads of all ranks."""

    def deep_snapshot(self) -> KernelSnapshot:
        """See all threads and descriptors of the ranks and of their descendants."""


@dataclass(slots=True)
class ProofSearch:
    """Seeks a proof that one world hangs, from glance to glance.

    Attributes:
        proc: Sees the world's processes.
        search: How far a proof has come; its blockers say what may end a wait.
        looked: The last close look.
    """

    proc: Proc
    search: ProofState = field(default_factory=ProofState)
    looked: KernelSnapshot | None = None
    _eager_s: float = 0.0

    @property
    def due_s(self) -> float:
        """When the next close look ends a window; there is none as long as none has begun."""
        last = self.search.last
        return math.inf if last is None else last.kernel.at_s + INTERVAL_S - _SLACK_S

    def step(
        self,
        before: Snapshot | None,
        now: Snapshot,
        *,
        deadline_s: float,
    ) -> bool:
        """Look closely if the glances are worth it; return whether the world is proven to hang.

        Args:
            before: The glance before.
            now: A glance at all main threads.
            deadline_s: When the world is ended in any case.
        """
        if not is_still(now, deadline_s=deadline_s) or not self._is_worth_it(before, now):
            self.search = ProofState()
            return False
        if self.search.last is None or now.kernel.at_s >= self.due_s:
            self.looked = self.proc.deep_snapshot()
            snapshot = replace(now, kernel=self.looked)
            self.search = self.search.after(snapshot, deadline_s=deadline_s)
        return self.search.is_proof

    def _is_worth_it(self, before: Snapshot | None, now: Snapshot) -> bool:
        """Whether to look closely: nobody has moved since the last glance.

        Once in a while a single glance is enough to begin. It saves one, and costs a close look at
        a world that only happens to stand still.
        """
        if before is None:
            return False
        if self.search.last is None and now.kernel.at_s >= self._eager_s:
            self._eager_s = now.kernel.at_s + EAGER_S
            return True
        return not any(has_left_wait(rank, before, now) for rank in now.kernel.ranks)


def still(before: KernelSnapshot, now: KernelSnapshot) -> frozenset[int]:
    """Return the ranks whose main threads have been in one and the same wait all the while."""
    earlier = {rank: process.main for rank, process in before.ranks.items()}
    return frozenset(
        rank
        for rank, process in now.ranks.items()
        if (main := process.main) is not None
        and (was := earlier.get(rank)) is not None
        and was.state == main.state == "S"
        and was.wait_key == main.wait_key
    )


def has_left_wait(rank: int, before: Snapshot, now: Snapshot) -> bool:
    """Whether a rank's main thread has left its wait, other than to poll in the same operation."""
    was, main = (
        snapshot.kernel.ranks[rank].main if rank in snapshot.kernel.ranks else None
        for snapshot in (before, now)
    )
    if was is None or main is None or was.wait_key == main.wait_key:
        return False
    waited = before.awaited_operations(rank, main.tid)
    return not waited or waited != now.awaited_operations(rank, main.tid)
