"""Why a rank may still go on: what was seen to move, timers that strike soon, waits for others.

A rank that computes, or whose child does, is late and does not hang as far as anybody can tell. So
is one that sleeps for some seconds, or reads what a process outside of the job may write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pytest_multihost.model.operation import Operations
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.proof import Snapshot
from pytest_multihost.proof.blockers import rank_blockers

HORIZON_S = 60.0
"""Who waits for a timer that strikes within this time is not said to hang."""


def motions(before: Snapshot, now: Snapshot) -> Mapping[int, str]:
    """Return why ranks may go on, as a sentence; nothing of those that stand still.

    Args:
        before: A deep snapshot.
        now: The next one.
    """
    found = rank_blockers(before, now, deadline_s=now.kernel.at_s + HORIZON_S)
    return {rank: each[0] for rank, each in found.items() if each}


def resting_threads(before: KernelSnapshot, now: KernelSnapshot) -> frozenset[tuple[int, int]]:
    """Return rank and native id of the threads that have not run between two looks."""
    keys = {
        (process.pid, each.wait_key) for process in before.processes for each in process.threads
    }
    return frozenset(
        (process.rank, each.tid)
        for process in now.processes
        for each in process.threads
        if process.rank is not None and (process.pid, each.wait_key) in keys
    )


def moved_ranks(
    now: KernelSnapshot,
    operations: Iterable[Operations],
    resting: Collection[tuple[int, int]],
) -> frozenset[int]:
    """Return the ranks that wait in an operation in a thread that is not among the resting ones."""
    waiting = {
        (each.rank, one.thread)
        for each in operations
        for one in each.recent
        if one.waited_s is not None
    }
    return frozenset(
        rank
        for rank, process in now.ranks.items()
        for each in process.threads
        if (rank, each.tid) in waiting and (rank, each.tid) not in resting
    )
