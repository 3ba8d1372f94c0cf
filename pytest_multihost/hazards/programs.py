"""The rule about jax: in which order processes start programs, and meet at barriers.

Python sees the first start of a program. On GPUs that is where processes make their communicators:
the call may stay there until all processes have come, and each process has one main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_multihost.hazards.rules import Found, Launched, Records, opposite
from pytest_multihost.model.hazard import RankRecord
from pytest_multihost.model.operation import PROGRAM_START, RUNTIME_SCOPE


def programs(records: Records) -> Iterator[Found]:
    """Find programs that two processes start in opposite orders, or one of them after a barrier."""
    launched = {
        (rank, 0): _in_order(record) for rank, record in sorted(records.items()) if record.programs
    }
    for found in opposite(launched):
        names = {each.operation.name for side in found.launches for each in side}
        if PROGRAM_START in names:
            yield replace(found, rule="programs")


def _in_order(record: RankRecord) -> Launched:
    """Return what the main thread has done with others."""
    met = (
        each
        for each in record.launches
        if each.thread == record.main_thread
        and each.operation.kind == "collective"
        and (each.operation.scope == RUNTIME_SCOPE or each.operation.scope.kind == "barrier")
    )
    in_order = sorted((*record.programs, *met), key=lambda each: each.operation.since_s)
    return {each.operation.place: each for each in in_order}
