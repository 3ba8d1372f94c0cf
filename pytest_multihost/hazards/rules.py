"""The rules about collectives. Each takes the record of all ranks, and yields what it finds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise
from math import inf
from operator import itemgetter

from pytest_multihost.model.hazard import Launch, RankRecord
from pytest_multihost.model.operation import RUNTIME_SCOPE, GroupKey, group_by_value
from pytest_multihost.model.spec import Rule

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
        rule: The rule.
        sides: For each rank concerned the operations, in the order in which it launched them.
        group: Members of the group that it is about; empty if it is about several.
    """

    rule: Rule
    sides: tuple[tuple[int, tuple[Launch, ...]], ...]
    group: tuple[int, ...] = ()


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
