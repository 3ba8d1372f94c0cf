"""What our own faults will still do to a world: while that is so, nothing is proven to hang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.model.event import Event
from pytest_multihost.model.fault import Fault

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
        f" in {event.detail['until_s'] - now:.1f} s"
        for event in _going_on(events)
        if event.detail.get("until_s", now) > now
    )


def stopped_by_plan(faults: Sequence[Fault], events: Iterable[Event]) -> frozenset[int]:
    """Return the ranks that are stopped, once or in turns, by faults of ours and nobody else."""
    if not faults:
        return frozenset()
    return frozenset(event.rank for event in _going_on(events) if "pause" in event.detail)


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
