"""Who a world waits for while it runs: nothing is judged, it is only shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.blame.rank_states import quick_standings
from pytest_multihost.blame.wait_graph import find_waits, graph_of
from pytest_multihost.model.operation import Operations


@dataclass(frozen=True, slots=True)
class Awaited:
    """The ranks that others wait for, and that themselves wait for nobody.

    Attributes:
        ranks: Which, in order.
        doing: What the main thread of the first one does: ``read(/data/ckpt)``.
        pid: The process of the first one.
    """

    ranks: tuple[int, ...]
    doing: str
    pid: int | None = None


def find_awaited(
    operations: Sequence[Operations], doing: Mapping[int, str], pids: Mapping[int, int]
) -> Awaited | None:
    """Return whom the world waits for; None where nobody waits, or all wait for one another.

    Args:
        operations: What each rank is in.
        doing: What each main thread does, for the reader.
        pids: The process of each rank.
    """
    ranks = [each.rank for each in operations]
    graph = graph_of(find_waits(quick_standings(operations)), ranks)
    free = [sink for sink in graph.sinks() if len(sink) == 1 and graph.waiters(sink)]
    if not free:
        return None
    found = tuple(sorted(frozenset[int]().union(*free)))
    return Awaited(found, doing.get(found[0], ""), pids.get(found[0]))
