"""Ranks that pass tensors of other sizes or types to an operation than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.causes import odd_ones
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.collectives import payload_of, transferred
from pytest_multihost.core.model.operation import (
    Operation,
    Payload,
    comparable,
    group_by_value,
    payload_text,
)


def as_other_payload(cause: Cause, states: States) -> Cause:
    """Return a mismatch if ranks pass tensors of other sizes or types than the others.

    That is so if all members are in one operation in which these must agree, and nothing moves. Of
    two ranks either may be right, so both are named.
    """
    operation = cause.operation
    if cause.kind != "transport" or cause.culprits or cause.cut is not None or operation is None:
        return cause
    return as_mismatch_of_payloads(cause, operation, states)


def as_mismatch_of_payloads(cause: Cause, operation: Operation, states: States) -> Cause:
    """Return a mismatch of the ranks' payloads of an operation, or the cause if they agree."""
    passed = dict(_payloads(operation, cause, states))
    sorts = group_by_value(zip(comparable(passed.values()), passed, strict=True))
    if len(sorts) < 2:  # noqa: PLR2004 - they agree
        return cause
    odd = tuple(sorted(passed)) if len(passed) == 2 else odd_ones(sorts)  # noqa: PLR2004 - a pair
    waiting = {*cause.waiting, *passed} - {*odd}
    sides = sorted(
        ((payload_text(payload), tuple(sorted(ranks))) for payload, ranks in sorts.items()),
        key=lambda each: (not {*each[1]} & {*odd}, each[1]),
    )
    return replace(
        cause,
        kind="mismatch",
        operation=operation,
        culprits=odd,
        waiting=tuple(sorted(waiting)),
        passed=tuple(sides),
    )


def _payloads(operation: Operation, cause: Cause, states: States) -> Iterator[tuple[int, Payload]]:
    """Yield each rank's payload of an operation, as far as it is known."""
    if operation.kind == "transfer":
        # A transfer that has failed is not a wait.
        waits = {wait.rank for wait in cause.waits if wait.operation is operation}
        ranks = waits or {rank for rank in cause.culprits if operation in states[rank].known}
        sides = [(rank, operation) for rank in ranks]
        sides += [
            (operation.peer, each)
            for rank in ranks
            if operation.peer is not None and operation.peer in states
            for each in states[operation.peer].known
            if each.is_same_as(operation) and each.peer == rank
            if each.name != operation.name
        ]
    else:
        sides = [
            (rank, each)
            for rank, state in states.items()
            for each in state.known
            if each.is_same_as(operation)
        ]
    # A receive of more than is sent is not a mistake, so sizes count only if the runtime complains.
    sizes = transferred if operation.kind == "transfer" and operation.failed else payload_of
    passed = ((rank, sizes(each)) for rank, each in sides)
    yield from ((rank, payload) for rank, payload in passed if payload)
