"""Deadlocks by locks of threads.

The threads of one rank wait for each other: each for a lock that the next one holds. Or a thread
holds a lock in an operation that other ranks do not enter, because they are in another one, and
the main thread of its rank, which would enter that, waits for the lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.wait_graph import Wait
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


def as_lock_across(cause: Cause, result: WorldResult) -> Cause:
    """Return a mismatch as `deadlock` if a rank cannot enter the others' operation without a lock.

    A thread of that rank holds the lock. A mismatch that names a minority stays as it is.
    """
    if cause.kind != "mismatch" or cause.culprits:
        return cause
    for wait in cause.concerned_waits:
        ahead = [each for each in sorted(wait.missing) if each in cause.waiting]
        if ahead and held_inside(wait, result.dumps) is not None:
            return replace(cause, kind="deadlock", cycle=(wait.rank, ahead[0]))
    return cause


def held_inside(inside: Wait, dumps: Collection[Dump]) -> LockWait | None:
    """Return the wait of a rank's main thread for a lock that the thread of another wait holds."""
    thread = inside.operation.thread if inside.operation is not None else 0
    found = [each for dump in dumps if dump.rank == inside.rank for each in dump.locks]
    waits = {each.ident: each for each in found}
    main = next((each for each in found if each.is_main and each.lock), None)
    chain: list[LockWait] = []
    wait = main
    while wait is not None and wait not in chain and wait.holder is not None:
        if thread and wait.holder.native_id == thread:
            return main
        chain.append(wait)
        wait = waits.get(wait.holder.ident)
    return None


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
