"""Programs of jax that have come to their end on some ranks, while other ranks wait inside.

All ranks have started such a program. If it has a collective in a loop or a branch, values of each
rank decide how often that collective runs, so a rank may wait in one more than the others ran.
A program without these runs the same collectives on each rank: then data was lost on its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States, Wait, graph_of
from pytest_multihost.core.blame.wording import wait_verb
from pytest_multihost.core.model.operation import Operation, group_by_value
from pytest_multihost.core.model.rank_names import Names

_MOST_OPEN = 64
"""A rank with this many open programs may have forgotten older ones, which look as if ended."""


def with_left(waits: tuple[Wait, ...], states: States) -> tuple[Wait, ...]:
    """Return the waits; ranks inside of a program wait for all ranks that have left it.

    Only if each member waits inside or has left, and no rank that has left can come back: each of
    them has finished, or waits for the ranks inside.
    """
    new = {wait: _that_left(wait, waits, states) for wait in waits if _may_lack(wait)}
    if not any(new.values()):
        return waits
    told = [
        replace(wait, missing=left, has_left=True, is_sure=False)
        if (left := new.get(wait))
        else wait
        for wait in waits
    ]
    graph = graph_of(told, states)
    are_gone = all(
        states[rank].condition == "finished" or wait.rank in graph.reached_from(rank)
        for wait in told
        if wait.has_left
        for rank in wait.missing
    )
    return tuple(told) if are_gone else waits


def left_notes(cause: Cause, names: Names) -> Iterator[str]:
    """Yield the programs that some ranks have left and others wait in, unless a cut explains it."""
    waits = [wait for wait in cause.concerned_waits if wait.has_left and cause.cut is None]
    found = group_by_value(
        ((wait.operation.title, tuple(sorted(wait.missing))), wait.rank)
        for wait in waits
        if wait.operation is not None
    )
    for (title, left), ranks in found.items():
        wait = f"{names.of(ranks)} {wait_verb(ranks)} in a collective of {title}"
        yield f"{wait} that {names.of(left)} did not run: a loop or branch in it differs"


def _may_lack(wait: Wait) -> bool:
    operation = wait.operation
    return (
        operation is not None
        and operation.may_run_unlike
        and operation.group_size is None
        and operation.has_members
        and operation.sequence > 0
        and not wait.missing
    )


def _that_left(wait: Wait, waits: Sequence[Wait], states: States) -> frozenset[int]:
    """Return the members that have left the program of a wait; none if that is not known of all."""
    operation = wait.operation
    if operation is None or not states.keys() >= {*operation.group}:
        return frozenset()
    inside = {
        each.rank
        for each in waits
        if each.operation is not None and each.operation.is_same_as(operation)
    }
    left = frozenset(operation.group) - inside
    are_told = all(_has_left(states[rank], operation) for rank in left)
    are_held = any(states[rank].condition != "alive" for rank in inside)  # that explains it better
    return left if are_told and not are_held else frozenset()


def _has_left(state: RankState, operation: Operation) -> bool:
    """Return whether a program has come to its end on a rank, without an error."""
    programs = [each for each in state.known if each.is_program]
    own = [each for each in programs if each.is_same_as(operation)]
    is_over = bool(own) and all(not (each.is_open or each.failed) for each in own)
    return is_over and sum(each.is_open for each in programs) < _MOST_OPEN
