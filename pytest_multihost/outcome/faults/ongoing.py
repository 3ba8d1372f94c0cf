"""What our own faults will still do to a world: while that is so, nothing is proven to hang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.model.event import Event
from pytest_multihost.model.fault import Fault

LATE_S = 0.5
"""How much later than planned an action may come, on a machine that has much to do."""

_WHAT = {"freeze": "will be thawed", "delay": "will go on"}


def pending_actions(
    faults: Sequence[Fault], events: Iterable[Event], now: float
) -> tuple[str, ...]:
    """Return what will still happen by itself, one sentence each.

    Args:
        faults: Of the world.
        events: Its history so far.
        now: Monotonic seconds.
    """
    if not faults:
        return ()
    return tuple(
        f"rank {event.rank} {_WHAT.get(event.detail['fault'], 'has a fault that ends')}"
        f" in {max(0.0, event.detail['until_s'] - now):.1f} s"
        for event in _going_on(events)
        if event.detail.get("until_s", 0.0) + LATE_S > now
    )


def continued_by_plan(faults: Sequence[Fault], events: Iterable[Event]) -> frozenset[int]:
    """Return the ranks that faults of ours stop now and continue later, once or in turns.

    One that is frozen for good is not among them: nobody will continue it.
    """
    if not faults:
        return frozenset()
    return frozenset(
        event.rank
        for event in _going_on(events)
        if (pause := event.detail.get("pause")) and ("until_s" in pause or pause["running_s"])
    )


def frozen_for_good(faults: Sequence[Fault], events: Iterable[Event]) -> dict[int, Fault]:
    """Return the ranks that faults of ours stop and nothing continues, with the fault of each."""
    if not any(each.kind == "freeze" for each in faults):
        return {}
    until_ended = (event for event in events if not event.detail.get("by_harness"))
    return {
        event.rank: faults[event.detail["index"]]
        for event in _going_on(until_ended)
        if event.detail["fault"] == "freeze" and "until_s" not in event.detail
    }


def _going_on(events: Iterable[Event]) -> list[Event]:
    """Return the beginnings of faults that are not over, the last of each."""
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
