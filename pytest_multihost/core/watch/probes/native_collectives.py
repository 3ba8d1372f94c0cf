"""Collectives that C++ code has called, such as the reducer of DDP.

Only torch's flight recorders show them. Their histories also have the collectives that Python has
called, which the slot pages show better: these have a beginning, a wait and an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_multihost.core.model.history import History
from pytest_multihost.core.model.operation import Operation, Operations, group_by_value

_MOST = 256
"""How many of a rank's last such collectives are kept: a trainer makes some at every step."""


def native_collectives(
    recorded: Iterable[History], flight: Iterable[History]
) -> tuple[Operations, ...]:
    """Return the collectives of each rank that only its flight recorder has."""
    by_python = {
        (each.rank, *each.group[:2]): each.times_s for each in recorded if not each.group[2].kind
    }
    found = (
        (each.rank, operation)
        for each in flight
        for operation in _unseen(each, by_python.get((each.rank, *each.group[:2]), ()))
    )
    return tuple(
        Operations(rank, tuple(sorted(theirs, key=lambda each: each.since_s)[-_MOST:]))
        for rank, theirs in sorted(group_by_value(found).items())
    )


def _unseen(history: History, begun_s: Sequence[float]) -> Iterator[Operation]:
    """Yield the collectives that no call from Python has begun.

    A call enters its collective at once, so of each call that is the first one after it.
    """
    calls = list(reversed(begun_s))
    for sequence in range(history.first, history.last + 1):
        operation = history.operation(sequence)
        if operation is None:
            continue
        if calls and calls[-1] <= operation.since_s:
            calls.pop()
        else:
            yield replace(operation, source="flight-recorder")
