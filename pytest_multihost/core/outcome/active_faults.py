"""Active faults: while one of them will still act, no hang can be proven."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.core.model.event import Event, Exited, FaultChanged
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.outcome.rank_facts import RankFacts

LATE_S = 0.5
"""How much later than planned a fault may end on a busy machine."""


def has_pending_actions(events: Iterable[Event], now: float) -> bool:
    """Return whether a fault will still act by itself.

    Args:
        events: The world's history so far, or only its active faults.
    """
    ends_s = [begun.until_s for _, begun in _ongoing(events) if begun.until_s is not None]
    return any(until_s + LATE_S > now for until_s in ends_s)


def continued_by_plan(events: Iterable[Event]) -> frozenset[int]:
    """Return the ranks that faults stop now and continue later, once or repeatedly.

    Ranks that are frozen for good are not included: nothing will continue them.
    """
    return frozenset(
        rank
        for rank, begun in _ongoing(events)
        if begun.pause is not None and (begun.pause.until_s is not None or begun.pause.running_s)
    )


def frozen_for_good(faults: Sequence[Fault], events: Iterable[Event]) -> dict[int, Fault]:
    """Return the ranks that a fault stops and nothing continues, with the fault of each.

    A frozen rank that the harness has ended is included: it was frozen until then.
    """
    until_ended = (
        each for each in events if not (isinstance(each.body, Exited) and each.body.by_harness)
    )
    return {
        rank: faults[begun.index]
        for rank, begun in _ongoing(until_ended)
        if faults[begun.index].kind == "freeze" and begun.until_s is None
    }


def _ongoing(events: Iterable[Event]) -> list[tuple[int, FaultChanged]]:
    """Return the last "begun" change of each active fault, with its rank.

    A rank's fault is over at its next change, or when the rank's process ends.
    """
    open_: dict[tuple[int, int], FaultChanged] = {}
    for event in events:
        match event.body:
            case FaultChanged(index=index, phase="begun") as begun:
                open_[event.rank, index] = begun
            case FaultChanged(index=index):
                open_.pop((event.rank, index), None)
            case Exited():
                open_ = {key: value for key, value in open_.items() if key[0] != event.rank}
    return [(rank, begun) for (rank, _), begun in open_.items()]


def active_fault_events(facts: Iterable[RankFacts]) -> list[Event]:
    """Return the "begun" events of the faults that are not over.

    A fault ends with its rank's process, except a fault that a service has performed outside the
    rank.
    """
    return [
        event
        for each in facts
        for event in each.active_faults
        if not each.is_gone or (isinstance(event.body, FaultChanged) and event.body.service)
    ]
