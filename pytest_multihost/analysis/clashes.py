"""Operations that can never match: whether ranks are in such, and whether they stay there."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.analysis import calls
from pytest_multihost.analysis.moment import Moment
from pytest_multihost.analysis.owners import is_of_torch
from pytest_multihost.analysis.standings import quick_standings
from pytest_multihost.analysis.waits import find_waits
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.process import Process


def clashing(operations: Sequence[Operations]) -> frozenset[int]:
    """Return the ranks that are in operations which can never match those of others among them."""
    waits = [each for each in find_waits(quick_standings(operations)) if each.clashes]
    ranks = frozenset(wait.rank for wait in waits)
    return ranks if any(wait.missing & ranks for wait in waits) else frozenset()


def give_up(moment: Moment, *, deadline_s: float) -> bool:
    """Tell whether one of them ends by a limit before the deadline: its caller may expect that.

    Args:
        moment: A close look at the world.
        deadline_s: When the world is ended in any case.
    """
    ranks = clashing(moment.operations)
    limits_s = [
        operation.gives_up_s
        for each in moment.operations
        if each.rank in ranks
        for operation in each.open
    ]
    processes = [process for rank, process in moment.look.ranks.items() if rank in ranks]
    is_told = min(limits_s, default=deadline_s + 1) <= deadline_s
    return is_told or any(_is_limited(each, deadline_s) for each in processes)


def _is_limited(process: Process, deadline_s: float) -> bool:
    """Whether a thread of gloo's waits with a limit: one that is idle waits without."""
    return any(
        thread.call in calls.FUTEXES
        and is_of_torch(thread)
        and thread.ends_s is not None
        and thread.ends_s <= deadline_s
        for thread in process.threads
    )
