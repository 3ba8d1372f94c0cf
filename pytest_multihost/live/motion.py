"""Why a rank may still go on: what was seen to move, timers that strike soon, waits for others.

A rank that computes, or whose child does, is late and does not hang as far as anybody can tell. So
is one that sleeps for some seconds, or reads what a process outside of the job may write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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


def resting_threads(before: KernelSnapshot, now: KernelSnapshot) -> frozenset[int]:
    """Return the native ids of the threads that have not run between two looks."""
    keys = {each.tid: each.wait_key for process in before.processes for each in process.threads}
    return frozenset(
        each.tid
        for process in now.processes
        for each in process.threads
        if keys.get(each.tid) == each.wait_key
    )


def moved_ranks(
    now: KernelSnapshot, tids: Collection[int], resting: Collection[int]
) -> frozenset[int]:
    """Return the ranks of which one of these threads is not among the resting ones."""
    return frozenset(
        rank
        for rank, process in now.ranks.items()
        for each in process.threads
        if each.tid in tids and each.tid not in resting
    )
