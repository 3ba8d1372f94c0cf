"""Failures of several ranks that have one cause.

Functions of jax compare a value of all ranks, and raise on each rank that sees a difference: mostly
on ranks whose own value is as most ranks'. gloo ends the rank to which more is sent than fits, so
that with the smaller tensor. In both cases the ranks' operations at that place of the group
show which of them differs. And several ranks that raise the same at one line are one cause.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.blame.cause import SMALLER, Cause, Side
from pytest_multihost.core.blame.causes import odd_ones
from pytest_multihost.core.blame.size_complaint import complains_of_size
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.operation import FLIGHT_SCOPE, RUNTIME_SCOPE, Operation
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.outcome import Finding

_COMPARE = frozenset({"sync_global_devices", "assert_equal"})
"""Collectives that raise if a name or another value differs between the ranks."""

_DIFFERENCE = "AssertionError"

_CLOSED_S = 0.25
"""A process that dies closes its connections at most so long before the harness sees its end."""


def with_shared_failures(
    causes: Sequence[Cause], states: States, result: WorldResult, finding: Finding
) -> tuple[Cause, ...]:
    """Return the causes; the failures of several ranks that have one cause are one cause."""
    causes = _raised_alike(causes, finding)
    found = _of_comparison(causes, states, finding) or _of_size(causes, states, result, finding)
    if found is None:
        return tuple(causes)
    explained = {*found.culprits, *found.waiting}
    return (found, *(each for each in causes if not explained.issuperset(each.culprits)))


def _raised_alike(causes: Sequence[Cause], finding: Finding) -> list[Cause]:
    """Return the causes, with those of ranks that raised the same exception at one line as one."""
    merged: dict[Hashable, Cause] = {}
    for number, cause in enumerate(causes):
        raised = cause.kind == "raised" and bool(cause.culprits) and not cause.parts
        key = finding.ranks[cause.culprits[0]].identity if raised else number
        first = merged.get(key)
        if first is None:
            merged[key] = cause
            continue
        culprits = {*first.culprits, *cause.culprits}
        merged[key] = replace(
            first,
            culprits=tuple(sorted(culprits)),
            waiting=tuple(sorted({*first.waiting, *cause.waiting} - culprits)),
        )
    return list(merged.values())


def _of_comparison(causes: Sequence[Cause], states: States, finding: Finding) -> Cause | None:
    """Return the cause if the world's first exception says that a value differs between ranks."""
    failed = sorted(
        (each.at_s, rank)
        for rank, each in enumerate(finding.ranks)
        if each.at_s is not None and rank in states
    )
    if not failed or finding.outcome != "failed":
        return None
    at_s, rank = failed[0]
    compared = [
        each
        for each in states[rank].known
        if each.failed and each.name in _COMPARE and each.error.startswith(_DIFFERENCE)
        if finding.ranks[rank].is_from(each.error)
    ]
    if not compared:
        return None
    there = _entered_at(compared[-1], states)
    sorts = _sorts(there)
    is_value = len(sorts) == 1
    if is_value:
        if not all(each.failed for each in there.values()):
            return None  # the payloads of other ranks are unknown
        # The text of the exception has the rank's own value at its end.
        sorts = {}
        for other, each in there.items():
            failure = finding.ranks[other].facts.failure
            error = failure.error if failure is not None else None
            # The record of the exception has only its first line.
            sorts.setdefault(error.message if error else each.error, []).append(other)
        if not odd_ones(sorts):
            return None
    return _cause(sorts, there, causes, at_s, is_certain=not is_value)


def _of_size(
    causes: Sequence[Cause], states: States, result: WorldResult, finding: Finding
) -> Cause | None:
    """Return the cause if gloo ended the first culprit for a size, and ranks passed other ones."""
    if not causes or causes[0].kind != "died":
        return None
    for rank in causes[0].culprits:
        if not complains_of_size(finding.ranks[rank]):
            continue
        inside = [
            each
            for each in states[rank].known
            if each.kind == "collective" and each.scope == RUNTIME_SCOPE and each.sequence
            if each.is_open
        ]
        for operation in inside:  # gloo names none; the first that differs is where they parted
            there = _entered_at(operation, states)
            sorts = _sorts(there)
            if len(sorts) > 1:
                return _cause(sorts, there, causes, causes[0].at_s, is_certain=False)
        there = _last_counted(rank, inside, states, result)
        if not inside:
            there = dict(_with_smaller(rank, there, states, causes[0].at_s))
        if len(sorts := _sorts(there)) > 1:
            return _cause(sorts, there, causes, causes[0].at_s, is_certain=False)
    return None


def _with_smaller(
    dead: int, there: Mapping[int, Operation], states: States, died_s: float | None
) -> Mapping[int, Operation]:
    """Return the operations of all others, and a smaller one for the rank which gloo ended.

    C++ code called its operation, and its flight recorder is lost. The data was too large for it,
    and came from one of the others, which are all in one operation. The loss of the rank may have
    ended that operation for them.
    """
    found = there or {
        rank: each
        for rank, state in states.items()
        for each in state.known
        if each.kind == "collective" and each.scope == RUNTIME_SCOPE and each.sequence
        if each.is_open and dead in each.group and rank != dead
    }
    operations = [*found.values()]
    is_one = len({(each.place, each.name, each.detail) for each in operations}) == 1
    since_s = math.inf if died_s is None else died_s - _CLOSED_S
    is_one = is_one and all(each.is_open or _ended_s(each) >= since_s for each in operations)
    if not is_one or {*operations[0].group} - {dead} != found.keys():
        return there
    smaller = replace(operations[0], name=SMALLER, detail="that C++ code called", frame=None)
    return {**found, dead: smaller}


def _ended_s(operation: Operation) -> float:
    return -math.inf if operation.ended_s is None else operation.ended_s


def _last_counted(
    dead: int, inside: Sequence[Operation], states: States, result: WorldResult
) -> dict[int, Operation]:
    """Return the last operations of members, as torch's flight recorders count.

    C++ code may have called it, on some of the ranks. No rank gets further without the rank that
    has died. Its own flight recorder is lost: its operation is known only if Python code called it.
    """
    groups = {each.group_key[:2] for each in inside}
    counted = [
        (rank, each)
        for rank, state in states.items()
        for each in (*state.known, *result.native_of(rank))
        if each.kind == "collective" and each.scope == FLIGHT_SCOPE and dead in each.group
        if rank != dead and (not groups or each.group_key[:2] in groups)
    ]
    if not counted:
        return {}
    _, last = max(counted, key=lambda each: (each[1].sequence, each[1].since_s))
    there = {rank: each for rank, each in counted if each.place == last.place}
    if len(inside) == 1:
        there[dead] = replace(inside[0], scope=last.scope, sequence=last.sequence)
    return there


def _entered_at(operation: Operation, states: States) -> dict[int, Operation]:
    """Return each rank's operation at the place of another one, as far as it is known."""

    def known() -> Iterator[tuple[int, Operation]]:
        for rank in sorted(states):
            for each in states[rank].known:
                if each.is_same_as(operation):
                    yield rank, each
                    break

    return dict(known())


def _sorts(there: Mapping[int, Operation]) -> dict[Hashable, list[int]]:
    """Return the ranks by the operation they entered."""
    sorts: dict[Hashable, list[int]] = {}
    for rank, each in there.items():
        sorts.setdefault((each.name, each.detail), []).append(rank)
    return sorts


def _cause(
    sorts: Mapping[Hashable, Sequence[int]],
    there: Mapping[int, Operation],
    causes: Sequence[Cause],
    at_s: float | None,
    *,
    is_certain: bool,
) -> Cause:
    odd = odd_ones(sorts)
    ordered = sorted(sorts.values(), key=lambda ranks: (not {*ranks} & {*odd}, ranks))
    sides: tuple[Side, ...] = tuple((there[ranks[0]], tuple(ranks)) for ranks in ordered)
    named = [each for each in sides if each[0].name != SMALLER]
    most = max(named, key=lambda each: len(each[1]))
    return Cause(
        kind="mismatch",
        confidence="certain" if is_certain else "likely",
        culprits=odd,
        waiting=tuple(sorted(there.keys() - {*odd})),
        operation=most[0],
        waits=causes[0].waits if causes else (),
        at_s=at_s,
        sides=sides,
    )
