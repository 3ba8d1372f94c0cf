"""Which faults go on: while one of them will still do something, nothing is proven to hang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.model.event import Event
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
        f"rank {event.rank} {_ENDS.get(event.detail['fault'], 'has a fault that ends')}"
        f" in {max(0.0, event.detail['until_s'] - now):.1f} s"
        for event in _ongoing(events)
        if event.detail.get("until_s", 0.0) + LATE_S > now
    )


def continued_by_plan(faults: Sequence[Fault], events: Iterable[Event]) -> frozenset[int]:
    """Return the ranks that faults stop now and continue later, once or in turns.

    One that is frozen for good is not among them: nothing will continue it.
    """
    if not faults:
        return frozenset()
    return frozenset(
        event.rank
        for event in _ongoing(events)
        if (pause := event.detail.get("pause"))
        and (pause["until_s"] is not None or pause["running_s"])
    )


def frozen_for_good(faults: Sequence[Fault], events: Iterable[Event]) -> dict[int, Fault]:
    """Return the ranks that faults stop and nothing continues, with the fault of each.

    The harness ends frozen ranks, too: what it has ended was frozen until then.
    """
    if not any(each.kind == "freeze" for each in faults):
        return {}
    until_ended = (event for event in events if not event.detail.get("by_harness"))
    return {
        event.rank: faults[event.detail["index"]]
        for event in _ongoing(until_ended)
        if event.detail["fault"] == "freeze" and "until_s" not in event.detail
    }


def _ongoing(events: Iterable[Event]) -> list[Event]:
    """Return the beginnings of faults that are not over, the last of each.

    A fault of a rank is over when it says so, or with the rank's process.
    """
    open_: dict[tuple[int, int], Event] = {}
    for event in events:
        if event.kind == "fault":
            key = (event.rank, event.detail["index"])
            if event.detail["phase"] == "begun":
                open_[key] = event
            else:
                open_.pop(key, None)
        elif event.kind == "exited":
            open_ = {key: value for key, value in open_.items() if key[0] != event.rank}
    return list(open_.values())
