"""The processes of a world that hold the file locks for which its ranks wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.process import KernelSnapshot, Process
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import RankSnapshot
from pytest_multihost.core.proof.system_calls import CHILDREN


@dataclass(frozen=True, slots=True)
class FileLockHolders:
    """The holders of a lock.

    Attributes:
        ranks: The ranks of which a process holds it.
        children: Of these ranks, those of which only a child holds it, for which the rank does not
            wait, with the child.
    """

    ranks: tuple[int, ...] = ()
    children: tuple[tuple[int, Child], ...] = ()

    def without(self, rank: int | None) -> FileLockHolders:
        """Return the holders that do not belong to a rank."""
        children = tuple(each for each in self.children if each[0] != rank)
        return FileLockHolders(tuple(each for each in self.ranks if each != rank), children)


def holders_among(pids: Collection[int], now: KernelSnapshot) -> FileLockHolders:
    """Return those of the processes that belong to a rank, as holders of a lock."""
    found = [
        (each.rank, each)
        for each in now.processes
        if each.pid in pids and each.rank is not None and not each.is_dead
    ]
    own = {rank for rank, each in found if each.is_rank or _is_waited_for(each, now)}
    children = (
        (rank, Child(each.pid, program=each.name)) for rank, each in found if rank not in own
    )
    return FileLockHolders(tuple(sorted({rank for rank, _ in found})), tuple(children))


def _is_waited_for(child: Process, now: KernelSnapshot) -> bool:
    """Return whether the main thread of a child's rank waits until the child ends."""
    rank = now.ranks.get(child.rank) if child.rank is not None else None
    main = rank.main if rank is not None else None
    return main is not None and main.call in CHILDREN and main.child in {child.pid, -1}


def lock_holders(now: KernelSnapshot) -> Mapping[int, FileLockHolders]:
    """Return, for each rank, the holders of the file locks that its threads wait for."""
    wanted: dict[int | None, set[int]] = {}
    for process in now.processes:
        pids = (pid for each in process.threads for pid in each.holders or ())
        wanted.setdefault(process.rank, set()).update(pids)
    return {rank: holders_among(wanted[rank], now) for rank in now.ranks}


def with_lock_holders(seen: RankSnapshot, found: FileLockHolders, names: Names) -> RankSnapshot:
    """Return a rank that waits for a file lock, with its holders."""
    whose = [
        f"a child of {names.of([rank])} holds: {child.title}" for rank, child in found.children
    ]
    note = f"waits for the lock of a file, which {', '.join(whose)}" if whose else seen.owed
    return replace(seen, lock_holders=found.ranks, lock_children=found.children, owed=note)
