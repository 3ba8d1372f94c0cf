"""The rules about collectives. Each takes the record of all ranks, and yields what it finds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby, pairwise
from math import inf
from operator import itemgetter

from pytest_multihost.core.model.operation import (
    PROGRAM_START,
    RUNTIME_SCOPE,
    GroupKey,
    group_by_value,
)
from pytest_multihost.extensions.hazards.model import Launch, Passed, RankRecord
from pytest_multihost.extensions.hazards.names import Rule

Records = Mapping[int, RankRecord]
"""What each rank has launched, by rank."""


Place = tuple[GroupKey, int]
"""A group, and the sequence of an operation in it: equal on all its members."""

Launched = Mapping[Place, Launch]
"""The collectives of a thread, in the order in which it launched them."""

Launcher = tuple[int, int]
"""A rank and a thread of it."""

After = Mapping[Place, Mapping[Place, Launcher]]
"""For each operation those that a thread launched next, with the thread."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule has found.

    Attributes:
        sides: For each rank concerned the operations, in the order in which it launched them, or
            the call that can fail before one.
        group: Members of the group that it is about; empty if it is about several.
    """

    rule: Rule
    sides: tuple[tuple[int, tuple[Launch | Passed, ...]], ...]
    group: tuple[int, ...] = ()

    @property
    def launches(self) -> tuple[tuple[Launch, ...], ...]:
        """The operations of each side."""
        return tuple(
            tuple(each for each in steps if isinstance(each, Launch)) for _, steps in self.sides
        )


def collectives(record: RankRecord) -> list[Launch]:
    """Return the collectives of a rank in groups that have other members."""
    return [
        each
        for each in record.launches
        if each.operation.kind == "collective"
        and each.operation.scope == RUNTIME_SCOPE
        and len(each.operation.group) > 1
    ]


def order(records: Records) -> Iterator[Found]:
    """Find collectives that ranks launch in orders which no common order agrees with.

    Mostly two ranks that launch collectives of two groups in opposite orders; a longer cycle has
    more ranks and groups. The order is that of one thread. Groups that ask for gloo by name stay on
    the CPU, and have no order with others.
    """
    if not _has_several_groups(records):
        return
    launched = {
        (rank, thread): {each.operation.place: each for each in launches}
        for rank, record in sorted(records.items())
        for thread, launches in group_by_value(
            (each.thread, each) for each in _on_device(record)
        ).items()
    }
    pairs = list(opposite(launched))
    yield from pairs or _cycle(launched)


def racing(records: Records) -> Iterator[Found]:
    """Find two groups that threads of their own use in opposite orders on two ranks."""
    if not _has_several_groups(records):
        return
    launched = {
        (rank, 0): {each.operation.place: each for each in _on_device(record)}
        for rank, record in sorted(records.items())
    }
    for found in opposite(launched):
        if any(len({each.thread for each in side}) > 1 for side in found.launches):
            yield replace(found, rule="racing")


def _has_several_groups(records: Records) -> bool:
    """Return whether there is an order at all; most programs have one group."""
    launches = (each for record in records.values() for each in record.launches)
    first = next(launches, None)
    return any(e.operation.group_key != first.operation.group_key for e in launches if first)


def _on_device(record: RankRecord) -> list[Launch]:
    return [each for each in collectives(record) if not each.operation.is_for_cpu]


def opposite(launched: Mapping[Launcher, Launched]) -> Iterator[Found]:
    """Yield for each two ranks the first two operations that they launch in opposite orders."""
    for one, two in combinations(launched, 2):
        ours, theirs = launched[one], launched[two]
        both = ours.keys() & theirs.keys() if one[0] != two[0] else set()
        pairs = zip(filter(both.__contains__, ours), filter(both.__contains__, theirs), strict=True)
        for a, b in pairs:
            if a != b:
                sides = (one[0], (ours[a], ours[b])), (two[0], (theirs[b], theirs[a]))
                yield Found("order", sides)
                break


def _cycle(launched: Mapping[Launcher, Launched]) -> Iterator[Found]:
    """Yield a shortest cycle of operations, each launched before the next by one of the ranks."""
    after: dict[Place, dict[Place, Launcher]] = {}
    for launcher, mine in launched.items():
        for a, b in pairwise(mine):
            after.setdefault(a, {}).setdefault(b, launcher)
    for place in _unordered(after):
        path = _way_back(place, after)
        if path:
            steps = [(after[a][b], a, b) for a, b in pairwise(path)]
            sides = groupby(steps, key=itemgetter(0))
            found = [(launcher, list(each)) for launcher, each in sides]
            yield Found(
                "order",
                tuple(
                    (launcher[0], (launched[launcher][each[0][1]], launched[launcher][each[-1][2]]))
                    for launcher, each in found
                ),
            )
            return


def _unordered(after: After) -> list[Place]:
    """Return the operations that come before themselves, and what comes after these."""
    before = Counter(each for later in after.values() for each in later)
    ready = [each for each in after if not before[each]]
    ordered = set[Place]()
    while ready:
        ordered.add(place := ready.pop())
        following = list(after.get(place, ()))
        before.subtract(following)
        ready += [each for each in following if not before[each]]
    return [each for each in after if each not in ordered]


def _way_back(place: Place, after: After) -> list[Place]:
    """Return a shortest way from an operation back to it; empty if there is none."""
    ways, seen = deque([[place]]), {place}
    while ways:
        way = ways.popleft()
        for each in after.get(way[-1], ()):
            if each == place:
                return [*way, each]
            if each not in seen:
                seen.add(each)
                ways.append([*way, each])
    return []


def threads(records: Records) -> Iterator[Found]:
    """Find a rank of which two threads were inside calls of one group at a time.

    What orders calls of two threads - a lock, a queue, a join - lets the second begin when the
    first has returned. Calls that are alike match in either order.
    """
    for rank, record in records.items():
        if len({each.thread for each in record.launches}) < 2:  # noqa: PLR2004 - as it says
            continue
        for launches in _by_group(record).values():
            for earlier, later in _overlapping(launches):
                if earlier.thread != later.thread and _call(earlier) != _call(later):
                    yield Found("threads", ((rank, (earlier, later)),), later.operation.group)


def _by_group(record: RankRecord) -> dict[GroupKey, list[Launch]]:
    return group_by_value((each.operation.group_key, each) for each in collectives(record))


def _call(launch: Launch) -> tuple[str, str, int | None]:
    """Return what another call must have in common to take the place of one."""
    return launch.operation.name, launch.operation.detail, launch.operation.root


def _overlapping(launches: Sequence[Launch]) -> Iterator[tuple[Launch, Launch]]:
    """Yield each synchronous call with those that began before it returned."""
    for index, earlier in enumerate(launches):
        operation = earlier.operation
        if operation.waited_s != operation.since_s:
            continue
        ended_s = inf if operation.ended_s is None else operation.ended_s
        for later in launches[index + 1 :]:
            if later.operation.since_s >= ended_s:
                break
            yield earlier, later


def unwaited(records: Records) -> Iterator[Found]:
    """Find asynchronous operations that nobody has waited for."""
    for rank, record in records.items():
        for each in record.launches:
            operation = each.operation
            is_meant = operation.kind != "wait" and operation.scope == RUNTIME_SCOPE
            is_known = operation.failed or operation.is_handed_on or len(operation.group) == 1
            if is_meant and operation.waited_s is None and not is_known:
                yield Found("unwaited", ((rank, (each,)),), operation.group)


def skipped(records: Records) -> Iterator[Found]:
    """Find a member of a group that did not enter the last collective of the others.

    Or a rank that did not do its part in a transfer.
    """
    launched = {rank: _by_group(each) for rank, each in records.items() if not each.is_truncated}
    for group in dict.fromkeys(group for each in launched.values() for group in each):
        members = [rank for rank in group[0] if rank in launched]
        of_ranks = {rank: launched[rank].get(group, []) for rank in members}
        has_failed = any(e.operation.failed for each in of_ranks.values() for e in each)
        if len(members) < len(group[0]) or has_failed:
            continue
        counts = {rank: len(each) for rank, each in of_ranks.items()}
        ahead, behind = max(members, key=counts.__getitem__), min(members, key=counts.__getitem__)
        missed = of_ranks[ahead][counts[behind] : counts[behind] + 1]
        if missed and _is_left_alone(missed[0]):
            sides = ((ahead, tuple(missed)), (behind, tuple(of_ranks[behind][-1:])))
            yield Found("skipped", sides, group[0])
    yield from _unmet(records)


def _is_left_alone(launch: Launch) -> bool:
    """Return whether nobody has seen how an operation ended: else it failed, and they know."""
    return launch.operation.waited_s is None and not launch.operation.is_handed_on


def _unmet(records: Records) -> Iterator[Found]:
    """Yield transfers for which the peer has not done its part."""
    if any(each.is_truncated for each in records.values()):
        return
    transfers = [
        each
        for record in records.values()
        for each in record.launches
        if each.operation.kind == "transfer" and each.operation.scope == RUNTIME_SCOPE
    ]
    if any(each.operation.failed or each.operation.peer is None for each in transfers):
        return
    by_side = group_by_value((_side(each), each) for each in transfers)
    for (group, ends, tag, is_send), mine in by_side.items():
        theirs = by_side.get((group, ends, tag, not is_send), [])
        peer = mine[0].operation.peer
        is_less = len(theirs) < len(mine) and _is_left_alone(mine[len(theirs)])
        if is_less and peer is not None and peer in records:
            missed, last = (mine[len(theirs)],), tuple(theirs[-1:])
            yield Found("skipped", ((mine[0].rank, missed), (peer, last)), group[0])


def _side(launch: Launch) -> tuple[GroupKey, tuple[int | None, ...], int, bool]:
    """Return what the transfers of one side have in common: group, sender and receiver, tag."""
    operation, rank = launch.operation, launch.rank
    is_send = operation.name == "send"
    ends = (rank, operation.peer) if is_send else (operation.peer, rank)
    return operation.group_key, ends, operation.tag, is_send


# The rule about jax: in which order processes start programs, and meet at barriers.
#
# Python sees the first start of a program. On GPUs that is where processes make their
# communicators: the call may stay there until all processes have come, and each process has one
# main thread.


def programs(records: Records) -> Iterator[Found]:
    """Find programs that two processes start in opposite orders, or one of them after a barrier."""
    launched = {
        (rank, 0): _in_order(record) for rank, record in sorted(records.items()) if record.programs
    }
    for found in opposite(launched):
        names = {each.operation.name for side in found.launches for each in side}
        if PROGRAM_START in names:
            yield replace(found, rule="programs")


def _in_order(record: RankRecord) -> Launched:
    """Return what the main thread has done with others."""
    met = (
        each
        for each in record.launches
        if each.thread == record.main_thread
        and each.operation.kind == "collective"
        and (each.operation.scope == RUNTIME_SCOPE or each.operation.scope.kind == "barrier")
    )
    in_order = sorted((*record.programs, *met), key=lambda each: each.operation.since_s)
    return {each.operation.place: each for each in in_order}


# The rule about sends and receives: do they still end where those of a pair take turns?
#
# With gloo it does not matter which transfer of two ranks is launched first. With NCCL those that
# two ranks do with each other run one after the other in a stream, unless they are in one batch; a
# send ends with its receive; there are no tags. So the run is played again from its record in that
# way. Each rank passes the events of its record in order: it launches operations, and waits for
# them. Every receive names its sender, so that no order of play can make another outcome: what is
# left in the end is left in any.


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
        side, waited_s = _transfer_side(each, counts), each.operation.waited_s
        events.append(_Event(each.operation.since_s, each, side, is_wait=False))
        if waited_s is not None:
            events.append(_Event(waited_s, each, side, is_wait=True))
    return sorted(events, key=lambda each: (each.at_s, each.launch.number, each.is_wait))


def _transfer_side(launch: Launch, counts: Counter[Key]) -> Key:
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
