"""Ranks that ask for groups of other members than the other ranks do.

All ranks ask for each group, in one order, and torch numbers the groups by that order. If one rank
names other members, the ranks that have made their group go on. The others wait for ranks that have
asked for another group, and never come to this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States, Wait
from pytest_multihost.core.model.history import Parting
from pytest_multihost.core.model.operation import (
    FLIGHT_SCOPE,
    REQUEST_SCOPE,
    RUNTIME_SCOPE,
    Operation,
)
from pytest_multihost.core.model.rank_names import rank_numbers


def as_other_members(cause: Cause, partings: Sequence[Parting], states: States) -> Cause:
    """Return a mismatch if ranks wait for ranks that have asked for a group of other members."""
    if not kind_of(cause.kind).is_of_absent_ranks or cause.cut is not None:
        return cause
    for parting in (each for each in partings if each.group[2] == REQUEST_SCOPE):
        asked = {
            rank: side.operation
            for side in parting.sides
            if side.operation is not None
            for rank in side.ranks
        }
        if any(_is_by_request(wait, asked, states) for wait in cause.concerned_waits):
            return _mismatch(cause, parting, asked)
    return cause


def _is_by_request(wait: Wait, asked: dict[int, Operation], states: States) -> bool:
    """Return whether a rank waits in a group that those it waits for have never asked for.

    Once ranks have asked for different groups, later groups may also have the names of others.
    """
    operation, own = wait.operation, asked.get(wait.rank)
    if operation is None or operation.kind != "collective" or own is None:
        return False
    is_creation = operation.scope.kind == "new_group"
    if is_creation and not wait.missing:
        return True
    is_this = own.detail == rank_numbers(operation.group)
    return any(
        asked[rank].detail != own.detail
        and (is_this or (is_creation and _never_comes(states[rank])))
        and (is_creation or not _has_group(states[rank], operation))
        for rank in wait.missing & asked.keys()
    )


def _never_comes(state: RankState) -> bool:
    """Return whether a rank will ask for no further group: it has left, or waits in one."""
    is_in_one = any(each.scope.kind == "new_group" for each in state.pending)
    return is_in_one or state.condition == "finished"


def _has_group(state: RankState, operation: Operation) -> bool:
    """Return whether a rank has made the group of an operation."""
    group = operation.group_key[:2]
    return any(
        key[:2] == group and key[2] in (RUNTIME_SCOPE, FLIGHT_SCOPE) for key in state.entered
    )


def _mismatch(cause: Cause, parting: Parting, asked: dict[int, Operation]) -> Cause:
    culprits = parting.minority
    sides = [
        (side.operation.detail, side.ranks) for side in parting.sides if side.operation is not None
    ]
    inside = {wait.rank for wait in cause.concerned_waits} | {*cause.waiting}
    return replace(
        cause,
        kind="mismatch",
        confidence="certain",
        culprits=culprits,
        waiting=tuple(sorted(inside - {*culprits})),
        cycle=(),
        operation=asked[culprits[0] if culprits else min(asked)],
        passed=tuple(sorted(sides, key=lambda each: (not {*each[1]} & {*culprits}, each[1]))),
    )
