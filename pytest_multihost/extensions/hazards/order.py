"""The rule `order`: ranks launch collectives of several groups in different orders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import combinations, groupby, pairwise
from operator import itemgetter

from pytest_multihost.core.model.operation import GroupKey, GroupPlace, group_by_value
from pytest_multihost.extensions.hazards.model import Launch, RankRecord
from pytest_multihost.extensions.hazards.records import Records, collectives
from pytest_multihost.extensions.hazards.rule import Found, HazardRule, Occurrences

Launched = Mapping[GroupPlace, Launch]
"""The collectives of a thread by their places, in the order in which it launched them."""

Launcher = tuple[int, int]
"""A rank and one of its threads."""

Order = tuple[tuple[int, int], ...]
"""The collectives of a thread in launch order: numbers of their groups, and of their places."""

Parting = tuple[tuple[int, int], tuple[int, int]]
"""Where two threads have the same two operations, each in its own order."""

After = Mapping[GroupPlace, Mapping[GroupPlace, Launcher]]
"""For each operation, the operations that a thread launched next, with that thread."""


def _find(records: Records) -> Iterator[Found]:
    """Find collectives that ranks launch in orders that contradict each other.

    Usually two ranks launch collectives of two groups in opposite orders; a longer cycle has more
    ranks and groups. Only the order within one thread counts. Groups that ask for gloo by name stay
    on the CPU, so their order does not matter.
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
    pairs = list(_opposite(launched))
    yield from pairs or _cycle(launched)


def _has_several_groups(records: Records) -> bool:
    """Return whether the order can matter; most programs have one group."""
    launches = (each for record in records.values() for each in record.launches)
    first = next(launches, None)
    return any(e.operation.group_key != first.operation.group_key for e in launches if first)


def _on_device(record: RankRecord) -> list[Launch]:
    return [each for each in collectives(record) if not each.operation.is_for_cpu]


def _opposite(launched: Mapping[Launcher, Launched]) -> Iterator[Found]:
    """Yield, for each pair of ranks, the first two operations launched in opposite orders.

    In a large world most ranks launch in one of a few orders, and each two orders are compared
    only once.
    """
    orders = _numbered(launched)
    numbers = {each: number for number, each in enumerate(dict.fromkeys(orders.values()))}
    of = {launcher: numbers[each] for launcher, each in orders.items()}
    calls = {launcher: list(each.values()) for launcher, each in launched.items()}
    found: dict[tuple[int, int], Parting | None] = {}
    for one, two in combinations(launched, 2):
        pair = of[one], of[two]
        if one[0] == two[0] or pair[0] == pair[1]:
            continue
        if pair not in found:
            found[pair] = _first_parting(orders[one], orders[two])
        if (parting := found[pair]) is not None:
            (a, b), (other, last) = parting
            ours, theirs = calls[one], calls[two]
            yield Found(((one[0], (ours[a], ours[b])), (two[0], (theirs[other], theirs[last]))))


def _numbered(launched: Mapping[Launcher, Launched]) -> Mapping[Launcher, Order]:
    """Return numbers for the groups and places: the key of a group of all ranks is long."""
    groups: dict[GroupKey, int] = {}
    places: dict[GroupPlace, int] = {}
    return {
        launcher: tuple(
            (groups.setdefault(place[0], len(groups)), places.setdefault(place, len(places)))
            for place in each
        )
        for launcher, each in launched.items()
    }


def _first_parting(ours: Order, theirs: Order) -> Parting | None:
    """Return where each order has the first two operations that stand in the other order there.

    Only operations count that are in both orders. Those of one group have one order.
    """
    if len({group for group, _ in ours} & {group for group, _ in theirs}) < 2:  # noqa: PLR2004 - pairs
        return None
    both = {*ours} & {*theirs}
    one, two = ([i for i, each in enumerate(every) if each in both] for every in (ours, theirs))
    pairs = zip(one, two, strict=True)
    for i, j in pairs:
        if ours[i] != theirs[j]:
            return (i, ours.index(theirs[j])), (j, theirs.index(ours[i]))
    return None


def _cycle(launched: Mapping[Launcher, Launched]) -> Iterator[Found]:
    """Yield a shortest cycle of operations: each is launched before the next by one rank."""
    after: dict[GroupPlace, dict[GroupPlace, Launcher]] = {}
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
                tuple(
                    (launcher[0], (launched[launcher][each[0][1]], launched[launcher][each[-1][2]]))
                    for launcher, each in found
                ),
            )
            return


def _unordered(after: After) -> list[GroupPlace]:
    """Return the operations on a cycle, and the operations after them."""
    before = Counter(each for later in after.values() for each in later)
    ready = [each for each in after if not before[each]]
    ordered = set[GroupPlace]()
    while ready:
        ordered.add(place := ready.pop())
        following = list(after.get(place, ()))
        before.subtract(following)
        ready += [each for each in following if not before[each]]
    return [each for each in after if each not in ordered]


def _way_back(place: GroupPlace, after: After) -> list[GroupPlace]:
    """Return a shortest cycle through an operation; empty if there is none."""
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


def _summarize(seen: Occurrences) -> str:
    return f"{seen.ranks} launch operations of their groups in different orders"


ORDER = HazardRule(
    name="order",
    find=_find,
    summarize=_summarize,
    when="NCCL before 2.26 can hang here at any time; since 2.26, with"
    " NCCL_LAUNCH_ORDER_IMPLICIT, it hangs if launch orders differ, as they do here.",
    is_default=True,
    judges_plain_runs=False,
)
