"""Decides which operations of a job's ranks cannot be one, where frames do not show the groups.

Frames show neither the members of a group nor the number of a call. As long as a rank is in no
operation, it is the likelier reason for the waits of the others. If all ranks wait, ranks that can
never match wait for each other: in two groups that were entered in opposite orders, for instance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.model.collectives import family
from pytest_multihost.core.model.operation import (
    BARRIER_KIND,
    JAX_SHUTDOWN,
    Operation,
    Scope,
    group_by_value,
)
from pytest_multihost.extensions.live.gloo_groups import is_of_unknown_group
from pytest_multihost.extensions.live.waits import UNNAMED, SeenWait

_LEAVES = frozenset({JAX_SHUTDOWN, "shutdown", "destroy_process_group"})
"""Operations of a rank that has done its work."""


def with_unlike_groups(
    waits: Mapping[int, SeenWait], present: Collection[int]
) -> Mapping[int, SeenWait]:
    """Return the waits, with those in two groups told apart.

    Args:
        present: The ranks that have not ended.
    """
    waits = _without_leaving(waits)
    found = {rank: each.operation for rank, each in waits.items() if each.operation is not None}
    if not all(rank in found and found[rank].kind == "collective" for rank in present):
        return waits
    waits = _with_unlike_barriers(waits)
    unknown = [rank for rank, each in sorted(found.items()) if is_of_unknown_group(each)]
    clusters = _clusters(unknown, waits)
    held = [frozenset(waits[ranks[0]].holders) for ranks in clusters]
    told = dict(waits)
    for number, ranks in enumerate(clusters if len(clusters) > 1 else ()):
        others = frozenset[str]().union(*held[:number], *held[number + 1 :])
        own = sorted(_split(each)[1] for each in held[number] - others)
        for rank in ranks:
            name = own[0] if own else found[rank].detail
            told[rank] = replace(waits[rank], operation=_apart(found[rank], number, name))
    return told


def _without_leaving(waits: Mapping[int, SeenWait]) -> Mapping[int, SeenWait]:
    """Return the waits, without those of ranks that are leaving while others wait for them.

    A rank that has done its work waits for the others to leave, too. They wait for its part.
    """
    names = {each.operation.name for each in waits.values() if each.operation is not None}
    if not names - _LEAVES:
        return waits
    return {
        rank: SeenWait() if each.operation is not None and each.operation.name in _LEAVES else each
        for rank, each in waits.items()
    }


def _with_unlike_barriers(waits: Mapping[int, SeenWait]) -> Mapping[int, SeenWait]:
    """Return the waits, with those at barriers of jax's coordination service told apart by id."""
    if len({each.barrier for each in waits.values()} - {""}) < 2:  # noqa: PLR2004 - two ids
        return waits
    return {
        rank: replace(each, operation=_at_barrier(each.operation, each.barrier))
        if each.barrier and each.operation is not None
        else each
        for rank, each in waits.items()
    }


def _at_barrier(operation: Operation, name: str) -> Operation:
    return replace(operation, scope=Scope(BARRIER_KIND, name), detail=name)


def _clusters(ranks: Sequence[int], waits: Mapping[int, SeenWait]) -> Sequence[Sequence[int]]:
    """Return the ranks in parts whose operations may be one."""
    parts: list[list[int]] = []
    for rank in ranks:
        part = next((each for each in parts if _may_be_one(waits[each[0]], waits[rank])), None)
        if part is None:
            parts.append([rank])
        else:
            part.append(rank)
    return parts


def _may_be_one(one: SeenWait, two: SeenWait) -> bool:
    """Return whether two ranks may be in one operation of one group.

    They are not if it is another operation, or if a function that is on both stacks has the group
    of each in a variable that does not hold the group of the other.
    """
    assert one.operation is not None  # noqa: S101 - only such are asked about
    assert two.operation is not None  # noqa: S101
    names = {one.operation.name, two.operation.name}
    if len({*map(family, names)}) > 1 and names.isdisjoint(UNNAMED):
        return False
    here, there = (group_by_value(map(_split, each.holders)) for each in (one, two))
    return not any(
        {*here[function]} - {*there[function]} and {*there[function]} - {*here[function]}
        for function in here.keys() & there.keys()
    )


def _split(holder: str) -> tuple[str, str]:
    function, _, variable = holder.rpartition(" ")
    return function, variable


def _apart(operation: Operation, number: int, name: str) -> Operation:
    """Return an operation of a group that is none of the others.

    Args:
        name: The variable that holds the group on this rank and on no rank with another group;
            empty if unknown.
    """
    detail = f"of group `{name}`" if name else "of a group"
    return replace(operation, scope=Scope("group", str(number)), detail=detail)
