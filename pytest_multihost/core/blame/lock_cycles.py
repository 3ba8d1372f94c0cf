"""Deadlocks between the threads of one rank: each waits for a lock that the next one holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pytest_multihost.core.blame.causes import Cause
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import Dump, LockWait


def as_lock_cycle(cause: Cause, result: WorldResult) -> Cause:
    """Return the cause as `deadlock` if the culprit's threads wait for each other in a cycle.

    One thread that waits for a lock of its own is no cycle: the rank stays a straggler, or stuck.
    """
    if cause.kind not in ("straggler", "stuck") or len(cause.culprits) != 1:
        return cause
    (rank,) = cause.culprits
    if not lock_cycle(result.dumps, rank):
        return cause
    waiting = tuple(sorted({*cause.waiting, rank}))
    return replace(cause, kind="deadlock", culprits=(), cycle=(rank,), waiting=waiting)


def lock_cycle(dumps: Collection[Dump], rank: int) -> tuple[LockWait, ...]:
    """Return the waits of a rank's threads for each other; empty if its main thread needs none."""
    found = [each for dump in dumps if dump.rank == rank for each in dump.locks]
    waits = {each.ident: each for each in found if each.holder is not None}
    chain: list[LockWait] = []
    wait = next((each for each in waits.values() if each.is_main), None)
    while wait is not None and wait not in chain:
        chain.append(wait)
        wait = waits.get(wait.holder.ident) if wait.holder is not None else None
    cycle = chain[chain.index(wait) :] if wait is not None else []
    return tuple(cycle) if len(cycle) > 1 else ()
