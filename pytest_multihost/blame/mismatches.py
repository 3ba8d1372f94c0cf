"""Operations that can never match: whether ranks are in such, and whether they stay there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_multihost.blame.rank_states import quick_standings
from pytest_multihost.blame.wait_graph import find_waits
from pytest_multihost.model.operation import Operations
from pytest_multihost.proof.snapshot import Snapshot
from pytest_multihost.proof.thread_owners import has_gloo_timeout


def clashing(operations: Sequence[Operations]) -> frozenset[int]:
    """Return the ranks that are in operations which can never match those of others among them."""
    waits = [each for each in find_waits(quick_standings(operations)) if each.clashes]
    ranks = frozenset(wait.rank for wait in waits)
    return ranks if any(wait.missing & ranks for wait in waits) else frozenset()


def give_up(ranks: Collection[int], snapshot: Snapshot, *, deadline_s: float) -> bool:
    """Tell whether one of `ranks` ends by a limit before the deadline: its caller may expect that.

    Args:
        ranks: Those that clash.
        snapshot: A close look at the world.
        deadline_s: When the world is ended in any case.
    """
    noted = any(
        operation.gives_up_s <= deadline_s
        for each in snapshot.operations
        if each.rank in ranks
        for operation in each.open
    )
    return noted or any(
        has_gloo_timeout(thread) and thread.ends_by(deadline_s)
        for rank, process in snapshot.kernel.ranks.items()
        if rank in ranks
        for thread in process.threads
    )
