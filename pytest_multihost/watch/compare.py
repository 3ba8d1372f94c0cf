"""What two snapshots of a world show together: who ran, who has left a wait, who stood still."""

from __future__ import annotations

from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.model.snapshot import RankSnapshot
from pytest_multihost.proof import Snapshot
from pytest_multihost.proof.threads import main_labels


def rank_snapshots(before: Snapshot | None, now: Snapshot) -> tuple[RankSnapshot, ...]:
    """Return what each rank does in a snapshot, as far as that and the one before show it."""
    kernel = before.kernel if before is not None else None
    labels = main_labels(kernel, now.kernel)
    ran = ranks_that_ran(kernel, now.kernel)
    found = []
    for each in now.operations:
        label, activity = labels.get(each.rank, (None, None))
        found.append(
            RankSnapshot(
                rank=each.rank,
                label=label,
                activity=activity,
                operations=each.open,
                entered=tuple(each.entered.items()),
                has_run=each.rank in ran,
            )
        )
    return tuple(found)


def ranks_that_ran(before: KernelSnapshot | None, now: KernelSnapshot) -> frozenset[int]:
    """Return the ranks whose main threads have run in between, if only to wait again."""
    earlier = before.ranks if before is not None else {}
    return frozenset(
        rank
        for rank, process in now.ranks.items()
        if rank in earlier
        and (was := earlier[rank].main) is not None
        and (main := process.main) is not None
        and (was.runs, was.cpu_ns) != (main.runs, main.cpu_ns)
    )


def unmoved_ranks(before: KernelSnapshot, now: KernelSnapshot) -> frozenset[int]:
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
    """Return whether a rank's main thread has left its wait, other than to poll in one operation.

    One that had no wait before and one that is gone have left none.
    """
    was, main = (
        snapshot.kernel.ranks[rank].main if rank in snapshot.kernel.ranks else None
        for snapshot in (before, now)
    )
    if was is None or main is None or was.wait_key == main.wait_key:
        return False
    awaited = before.awaited_operations(rank, main.tid)
    return not awaited or awaited != now.awaited_operations(rank, main.tid)
