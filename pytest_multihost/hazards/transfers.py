"""The rule about sends and receives: do they still end where a send waits for its receive?

The run is played again from its record, with sends that end only once their receive has begun, and
collectives that end once all members have entered them. Each rank passes the events of its record
in order: it begins operations, and waits for them. Every receive names its sender, so that no order
of play can make another outcome: what is left waiting in the end waits in any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.hazards.rules import Found, Records
from pytest_multihost.model.hazard import Launch, RankRecord
from pytest_multihost.model.operation import RUNTIME_SCOPE

Key = tuple[object, ...]
"""What identifies an operation, or one side of a transfer, on all ranks."""


@dataclass(frozen=True, slots=True)
class _Event:
    """A rank begins an operation, or waits for it."""

    at_s: float
    launch: Launch
    is_wait: bool


def buffered(records: Records) -> Iterator[Found]:
    """Find sends that end only because they are buffered."""
    if any(_is_unclear(record) for record in records.values()):
        return
    events = {rank: _events(record) for rank, record in records.items()}
    left = _play(events)
    stuck = {rank: events[rank][at].launch for rank, at in left.items()}
    sends = [rank for rank, each in stuck.items() if each.operation.name == "send"]
    if not sends:
        return
    first = min(sends)
    peer = stuck[first].operation.peer
    second = peer if peer in stuck else next((rank for rank in stuck if rank != first), None)
    if second is not None:
        yield Found("buffered", tuple((each, (stuck[each],)) for each in (first, second)))


def _is_unclear(record: RankRecord) -> bool:
    """Return whether the record lacks what its play needs.

    It lacks operations, or one has failed, or a receive takes what comes from anybody, or several
    threads of the rank took turns in a way that is not recorded.
    """
    launches = _played(record)
    return (
        record.is_truncated
        or any(each.operation.failed for each in launches)
        or any(e.operation.kind == "transfer" and e.operation.peer is None for e in launches)
        or len({each.thread for each in launches} | {e.operation.thread for e in launches}) > 1
    )


def _played(record: RankRecord) -> list[Launch]:
    return [
        each
        for each in record.launches
        if each.operation.scope == RUNTIME_SCOPE and each.operation.kind != "wait"
    ]


def _events(record: RankRecord) -> list[_Event]:
    launches = _played(record)
    begun = [_Event(each.operation.since_s, each, is_wait=False) for each in launches]
    waits = [
        _Event(each.operation.waited_s, each, is_wait=True)
        for each in launches
        if each.operation.waited_s is not None
    ]
    return sorted((*begun, *waits), key=lambda each: (each.at_s, each.launch.number, each.is_wait))


def _play(events: Mapping[int, Sequence[_Event]]) -> dict[int, int]:
    """Return the ranks that are left waiting, and at which of their events."""
    known = {_side(e.launch) for each in events.values() for e in each}
    at, begun = dict.fromkeys(events, 0), set[Key]()
    has_moved = True
    while has_moved:
        has_moved = False
        for rank, mine in events.items():
            while at[rank] < len(mine) and _can_pass(mine[at[rank]], begun, known):
                begun.add(_side(mine[at[rank]].launch))
                at[rank] += 1
                has_moved = True
    return {rank: index for rank, index in at.items() if index < len(events[rank])}


def _can_pass(event: _Event, begun: set[Key], known: set[Key]) -> bool:
    """Return whether a rank gets past an event; what no record has is taken as begun."""
    return not event.is_wait or all(
        each in begun or each not in known for each in _others(event.launch)
    )


def _side(launch: Launch) -> Key:
    """Return the part of a rank in an operation."""
    operation = launch.operation
    if operation.kind == "collective":
        return operation.place, launch.rank
    other = operation.peer
    ends = (launch.rank, other) if operation.name == "send" else (other, launch.rank)
    return operation.group_key, ends, operation.tag, operation.sequence, operation.name


def _others(launch: Launch) -> Iterator[Key]:
    """Yield the parts of others that an operation waits for."""
    operation = launch.operation
    if operation.kind == "collective":
        yield from ((operation.place, rank) for rank in operation.group)
        return
    group, ends, tag, sequence, name = _side(launch)
    yield group, ends, tag, sequence, "recv" if name == "send" else "send"
