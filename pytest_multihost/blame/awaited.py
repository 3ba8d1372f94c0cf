"""Who a world waits for while it runs: nothing is judged, it is only shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.blame.rank_states import quick_standings
from pytest_multihost.blame.wait_graph import find_waits, graph_of
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.snapshot import Activity


@dataclass(frozen=True, slots=True)
class Awaited:
    """The ranks that others wait for, and that themselves wait for nobody.

    Attributes:
        ranks: Which, in order.
        activity: What the main thread of the first one does, where that is known.
        pid: The process of the first one.
    """

    ranks: tuple[int, ...]
    activity: Activity | None = None
    pid: int | None = None


def find_awaited(
    operations: Sequence[Operations],
    activities: Mapping[int, Activity | None],
    pids: Mapping[int, int],
) -> Awaited | None:
    """Return whom the world waits for; None where nobody waits, or all wait for one another.

    Args:
        operations: What each rank is in.
        activities: What each main thread does.
        pids: The process of each rank.
    """
    ranks = [each.rank for each in operations]
    graph = graph_of(find_waits(quick_standings(operations)), ranks)
    free = [sink for sink in graph.sinks() if len(sink) == 1 and graph.waiters(sink)]
    if not free:
        return None
    found = tuple(sorted(frozenset[int]().union(*free)))
    return Awaited(found, activities.get(found[0]), pids.get(found[0]))
