"""The rule about sends and receives: do they still end where those of a pair take turns?

With gloo it does not matter which transfer of two ranks is launched first. With NCCL those that
two ranks do with each other run one after the other in a stream, unless they are in one batch; a
send ends with its receive; there are no tags. So the run is played again from its record in that
way. Each rank passes the events of its record in order: it launches operations, and waits for
them. Every receive names its sender, so that no order of play can make another outcome: what is
left in the end is left in any.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
    side: Key
    is_wait: bool


def buffered(records: Records) -> Iterator[Found]:
    """Find sends and receives of two ranks that end only because they take no turns."""
    if any(_is_unclear(record) for record in records.values()):
        return
    events = {rank: _events(record) for rank, record in records.items()}
    left = _play(events)
    for rank, at in sorted(left.items()):
        launch = events[rank][at].launch
        peer = launch.operation.peer
        if launch.operation.kind == "transfer" and peer is not None and peer in left:
            mine = _between(events[rank][: at + 1], peer)
            theirs = _between(events[peer][: left[peer] + 1], rank)
            yield Found("buffered", ((rank, mine), (peer, theirs)))
            return


def _between(events: Sequence[_Event], peer: int) -> tuple[Launch, ...]:
    """Return the last two operations that a rank has launched with a peer."""
    launches = [each.launch for each in events if not each.is_wait]
    return tuple(each for each in launches if each.operation.peer == peer)[-2:]


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
    """Return what a rank did, in order."""
    counts = Counter[Key]()
    events = []
    for each in _played(record):
        side, waited_s = _side(each, counts), each.operation.waited_s
        events.append(_Event(each.operation.since_s, each, side, is_wait=False))
        if waited_s is not None:
            events.append(_Event(waited_s, each, side, is_wait=True))
    return sorted(events, key=lambda each: (each.at_s, each.launch.number, each.is_wait))


def _side(launch: Launch, counts: Counter[Key]) -> Key:
    """Return what identifies the part of a rank in an operation."""
    operation = launch.operation
    if operation.kind == "collective":
        return operation.place, launch.rank
    is_send, other = operation.name == "send", operation.peer
    ends = (launch.rank, other) if is_send else (other, launch.rank)
    counts[ends, operation.group_key, is_send] += 1
    return (ends, operation.group_key, counts[ends, operation.group_key, is_send]), is_send


def _play(events: Mapping[int, Sequence[_Event]]) -> dict[int, int]:
    """Return the ranks that are left waiting, and at which of their events."""
    play = _Play({e.side for each in events.values() for e in each})
    at = dict.fromkeys(events, 0)
    has_moved = True
    while has_moved:
        has_moved = False
        for rank, mine in events.items():
            while at[rank] < len(mine) and play.passes(mine[at[rank]]):
                at[rank] += 1
                has_moved = True
    return {rank: index for rank, index in at.items() if index < len(events[rank])}


@dataclass(slots=True)
class _Play:
    """How far a play is.

    Attributes:
        known: The parts of operations that the record has; what others would do is taken as done.
        launched: Parts that have been launched.
        ended: Parts of transfers that have ended.
        streams: Parts that are left of each rank's transfers with each peer, first launched first.
        batched: Parts that are left of those in batches, which take no turns.
    """

    known: set[Key]
    launched: set[Key] = field(default_factory=set)
    ended: set[Key] = field(default_factory=set)
    streams: dict[Key, deque[Key]] = field(default_factory=dict)
    batched: set[Key] = field(default_factory=set)

    def passes(self, event: _Event) -> bool:
        """Return whether a rank gets past its next event."""
        launch, side = event.launch, event.side
        is_transfer = launch.operation.kind == "transfer"
        if event.is_wait:
            members = () if is_transfer else launch.operation.group
            entered = {(launch.operation.place, rank) for rank in members} & self.known
            return side in self.ended if is_transfer else entered <= self.launched
        self.launched.add(side)
        if is_transfer:
            self._add(launch, side)
        return True

    def _add(self, launch: Launch, side: Key) -> None:
        """Launch one side of a transfer, and end what can end then."""
        operation = launch.operation
        if operation.is_batched:
            self.batched.add(side)
        else:
            stream = launch.rank, operation.peer, operation.group_key
            self.streams.setdefault(stream, deque()).append(side)
        while ending := self._ending():
            self.ended |= ending
            self.batched -= ending
            for queue in self.streams.values():
                while queue and queue[0] in ending:
                    queue.popleft()

    def _ending(self) -> set[Key]:
        """Return the parts whose turn it is, on both ranks."""
        ready = self.batched | {queue[0] for queue in self.streams.values() if queue}
        return {each for each in ready if {_other(each)} & self.known <= ready}


def _other(side: Key) -> Key:
    """Return the part of the peer in a transfer."""
    transfer, is_send = side
    return transfer, not is_send
