"""Deadlocks by locks of threads.

The threads of one rank wait for each other: each for a lock that the next one holds. Or a thread
holds a lock in an operation that other ranks do not enter, because they are in another one, and
the main thread of its rank, which would enter that, waits for the lock.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.lock_cycles import held_inside, lock_cycle
from pytest_multihost.core.model.result import WorldResult


def as_lock_cycle(cause: Cause, result: WorldResult) -> Cause:
    """Return the cause as `deadlock` if the culprit's threads wait for each other in a cycle.

    One thread that waits for a lock of its own is not a cycle: the rank stays a straggler, or
    stuck.
    """
    if kind_of(cause.kind).culprit != "still" or len(cause.culprits) != 1:
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
