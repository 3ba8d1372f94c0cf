"""Which faults go on: while one of them will still do something, nothing is proven to hang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.model.event import Event, Exited, FaultChanged
from pytest_multihost.model.fault import Fault

LATE_S = 0.5
"""How much later than planned the end of a fault may come on a busy machine."""

_ENDS = {"freeze": "will be thawed", "delay": "will go on"}


def pending_actions(
    faults: Sequence[Fault], events: Iterable[Event], now: float
) -> tuple[str, ...]:
    """Return what faults will still do by themselves, one sentence each.

    Args:
        faults: Of the world.
        events: Its history so far.
        now: Monotonic seconds.
    """
    if not faults:
        return ()
    return tuple(
        f"rank {rank} {_ENDS.get(begun.fault, 'has a fault that ends')}"
        f" in {max(0.0, begun.until_s - now):.1f} s"
        for rank, begun in _ongoing(events)
        if begun.until_s is not None and begun.until_s + LATE_S > now
    )


def continued_by_plan(faults: Sequence[Fault], events: Iterable[Event]) -> frozenset[int]:
    """Return the ranks that faults stop now and continue later, once or in turns.

    One that is frozen for good is not among them: nothing will continue it.
    """
    if not faults:
        return frozenset()
    return frozenset(
        rank
        for rank, begun in _ongoing(events)
        if begun.pause is not None and (begun.pause.until_s is not None or begun.pause.running_s)
    )


def frozen_for_good(faults: Sequence[Fault], events: Iterable[Event]) -> dict[int, Fault]:
    """Return the ranks that faults stop and nothing continues, with the fault of each.

    The harness ends frozen ranks, too: what it has ended was frozen until then.
    """
    if not any(each.kind == "freeze" for each in faults):
        return {}
    until_ended = (
        each for each in events if not (isinstance(each.body, Exited) and each.body.by_harness)
    )
    return {
        rank: faults[begun.index]
        for rank, begun in _ongoing(until_ended)
        if begun.fault == "freeze" and begun.until_s is None
    }


def _ongoing(events: Iterable[Event]) -> list[tuple[int, FaultChanged]]:
    """Return, with their ranks, the beginnings of faults that are not over, the last of each.

    A fault of a rank is over when it says so, or with the rank's process.
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
