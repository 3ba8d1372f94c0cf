"""All operations of a rank that are known at the end of a world."""

from __future__ import annotations

from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.result import WorldResult


def operations_of(rank: int, result: WorldResult) -> list[Operation]:
    """Return a rank's known operations: its records, and those only seen in snapshots.

    An operation that was seen open may have ended before it was recorded.
    """
    recorded = [each for page in result.operations if page.rank == rank for each in page.recent]
    seen = result.last_seen[rank].operations if rank in result.last_seen else ()
    known = {(each.name, each.since_s, each.group_key) for each in recorded}
    return recorded + [e for e in seen if (e.name, e.since_s, e.group_key) not in known]
