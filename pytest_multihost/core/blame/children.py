"""Names the child process of a rank that a cause is about, and children that signals have ended.

The work of a role is often done by a child of its rank: an engine's core, a scheduler. Then the
rank is to blame, and the reader wants to know which of its processes, and at which line.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.operation import Operation


def with_child(cause: Cause, states: States) -> Cause:
    """Return a cause with the child of its culprit that does not do its part, if it is a child."""
    if len(cause.culprits) != 1 or not kind_of(cause.kind).is_alive:
        return cause
    state = states[cause.culprits[0]]
    lost = state.seen.lost if state.seen.is_endless else cause.lost
    return replace(cause, child=None if lost else _child_of(state, cause.operation), lost=lost)


def _child_of(state: RankState, operation: Operation | None) -> Child | None:
    """Return the only child of a rank that takes part in a group, else the one it waits for."""
    group = operation.group_key if operation is not None else None
    inside = {each.child for each in state.known if each.group_key == group}
    if len(inside) == 1:
        return inside.pop()
    everywhere = {each.child for each in state.known if each.child is not None}
    if state.seen.is_for_child and state.seen.child is not None:
        return state.seen.child
    is_in_child = operation is not None and operation.child is not None
    return everywhere.pop() if is_in_child and len(everywhere) == 1 else None


def as_family(cause: Cause, states: States) -> Cause:
    """Return the cause of a wait for unknown members, if these may be children of one rank.

    A child of the rank waits in a group whose other members are not known, and another child cannot
    come. If a signal has ended that child, the rank is the culprit: it has not waited for the
    child, so it does not know. If that child waits for a file lock that a process of the rank
    holds, the rank's processes wait for each other.
    """
    operation = cause.operation
    if cause.kind != "unknown" or operation is None or operation.child is None:
        return cause
    known = [states[rank] for rank in cause.waiting if rank in states]
    lost = [each for each in known if each.seen.lost]
    if len(lost) == 1:
        waiting = tuple(rank for rank in cause.waiting if rank != lost[0].rank)
        return replace(
            cause,
            kind="straggler" if waiting else "stuck",
            confidence="likely",
            culprits=(lost[0].rank,),
            waiting=waiting,
            lost=lost[0].seen.lost,
        )
    locked = [each.rank for each in known if each.rank in each.seen.lock_holders]
    if not lost and len(locked) == 1:
        return replace(cause, kind="deadlock", confidence="likely", cycle=tuple(locked))
    return cause
