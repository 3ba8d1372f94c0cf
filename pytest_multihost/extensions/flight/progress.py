"""Derives how far each rank has come: the operation it waits in, and the operations it has reached.

A launched operation has not necessarily begun. A device queues operations: the rank is in the first
unended operation, and has not reached those behind it. For example, a pipeline stage has
launched ten collectives behind a receive. It is late in none of them; it waits for the stage
before. On the CPU each operation begins when it is launched.

Other ranks' dumps show more than a rank's own. If one of them shows the end of a collective that
needs all members, each member has taken part. If a member's own dump lacks that end, the member
itself is stuck: its device, or the thread that watches it, has stopped. If a member's dump does not
even show the beginning, it was taken at an earlier time, and nothing follows from it. Where members
passed tensors of different sizes, an end shows nothing: members with smaller ones end sooner.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from pytest_multihost.core.model.collectives import family, of_flight_name
from pytest_multihost.core.model.operation import Operation, comparable, group_by_value
from pytest_multihost.extensions.flight.launched import Joined, Launched

_SETTLED_S = 1.0
"""A rank, and all ranks that share groups with it, must have rested this long before its dump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one rank has come.

    Attributes:
        waits_in: Operations that it waits in; several if they were launched as one.
        held_in: The operation on its device that has ended on other ranks but not here.
        entered: By group, the number of the last collective that it has reached.
        untold: Its groups of which the dump does not tell that number.
        is_empty: Whether its dump lacks operations that other dumps show it has launched.
        is_old: Whether its dump was taken before other ranks' dumps, while ranks moved.
        gave_up: Whether the operation it waited in has ended without all members.
    """

    rank: int
    waits_in: tuple[Launched, ...] = ()
    held_in: Operation | None = None
    reached: tuple[Launched, ...] = ()
    entered: Mapping[int, int]
    untold: frozenset[int] = frozenset()
    is_empty: bool = False
    is_old: bool = False
    gave_up: bool = False


def progress_of(joined: Joined, ahead_s: Mapping[int, float]) -> Mapping[int, Progress]:
    """Return how far each rank with a dump has come.

    Args:
        ahead_s: By rank, how far its clock is ahead, in seconds.
    """
    world = _world_of(joined)
    found = {}
    for rank, counts in world.launched.items():
        one = _standing(rank, joined.launched[rank], counts, world)
        # Others have seen the end of a collective that its dump does not show launched, so the
        # dump is older than theirs.
        is_behind = any(count < world.ended.get(group, 0) for group, count in counts.items())
        was_moving = _was_moving(one, joined, ahead_s, world)
        if is_behind and not was_moving and joined.recordings[rank].is_empty:
            one = replace(one, is_empty=True)
        elif is_behind or was_moving:
            one = replace(one, waits_in=(), held_in=None, is_old=True)
        found[rank] = one
    return _without_held_parts(found)


@dataclass(frozen=True, slots=True)
class _DumpedWorld:
    """The progress of all ranks, as their dumps show it. Groups are numbers.

    Attributes:
        groups_of: By rank, the groups of which it is a member.
        launched: By rank and group, how many collectives it has launched there, if that is known.
        least: By group, the smallest of these counts.
        ended: By group, the last collective that needs all members and has ended on a rank.
        sides: By group and number, the members' collectives.
        began_s: By group, when a collective of at least each number began last.
        awaits_s: By rank, when another rank last began a transfer with it that is open.
        ends_s: By group and number, when the end of a collective was seen last.
    """

    groups_of: Mapping[int, Sequence[int]]
    launched: Mapping[int, Mapping[int, int]]
    least: Mapping[int, int]
    ended: Mapping[int, int]
    sides: Mapping[tuple[int, int], Sequence[Launched]]
    began_s: Mapping[int, _Times]
    awaits_s: Mapping[int, float]
    ends_s: Mapping[tuple[int, int], float]

    def has_ended(self, one: Launched) -> bool:
        """Return whether another rank has seen the end of a collective that needs all members."""
        is_over = not one.is_transfer and one.operation.sequence <= self.ended.get(one.group, 0)
        return is_over and not _clashes(self.sides[one.place])


@dataclass(frozen=True, slots=True)
class _Times:
    """When collectives of a group began: their numbers, and the last time of each or later ones."""

    numbers: Sequence[int]
    lasts_s: Sequence[float]

    @classmethod
    def of(cls, found: Iterable[tuple[int, float]]) -> _Times:
        """Return the times of collectives, given as number and time."""
        lasts: dict[int, float] = {}
        for number, since_s in found:
            lasts[number] = max(since_s, lasts.get(number, since_s))
        numbers = sorted(lasts)
        backwards = accumulate((lasts[each] for each in reversed(numbers)), max)
        return cls(numbers, [*backwards][::-1])

    def after(self, number: int) -> float | None:
        """Return when a collective behind this one began last; None if none has."""
        at = bisect_right(self.numbers, number)
        return self.lasts_s[at] if at < len(self.numbers) else None


def _world_of(joined: Joined) -> _DumpedWorld:
    everything = [each for theirs in joined.launched.values() for each in theirs]
    collectives = [each for each in everything if not each.is_transfer]
    are_counts = _counted_groups(joined)
    groups_of = group_by_value(
        (rank, group) for group, key in enumerate(joined.groups) for rank in key[0]
    )
    launched = {
        rank: dict(_launched_counts(rank, groups_of.get(rank, ()), joined, are_counts))
        for rank in joined.recordings
    }
    known = group_by_value(pair for counts in launched.values() for pair in counts.items())
    began = group_by_value(
        (e.group, (e.operation.sequence, e.operation.since_s)) for e in collectives
    )
    awaits = group_by_value(
        (e.operation.peer, e.operation.since_s)
        for e in everything
        if e.is_transfer and e.operation.is_open and e.operation.peer is not None
    )
    ends = group_by_value(
        (e.place, e.operation.ended_s) for e in collectives if e.operation.ended_s is not None
    )
    return _DumpedWorld(
        groups_of=groups_of,
        launched=launched,
        least={group: min(counts) for group, counts in known.items()},
        ended=_ended_for_all(collectives, joined, are_counts),
        sides=group_by_value((each.place, each) for each in collectives),
        began_s={group: _Times.of(times) for group, times in began.items()},
        awaits_s={rank: max(times_s) for rank, times_s in awaits.items()},
        ends_s={place: max(times_s) for place, times_s in ends.items()},
    )


def _clashes(sides: Sequence[Launched]) -> bool:
    """Return whether members have entered collectives or payloads that cannot match."""
    payloads = {*comparable({each.operation.payload for each in sides} - {()})}
    return len(payloads) > 1 or len({family(each.operation.name) for each in sides}) > 1


def _without_held_parts(found: Mapping[int, Progress]) -> Mapping[int, Progress]:
    """Return the progress without the matched transfers of a batch that another part holds back.

    Transfers that were launched as one end together. A rank whose own transfer is matched therefore
    waits until the peer's whole batch has its partners.
    """
    done = {_end(rank, e) for rank, one in found.items() for e in one.reached if e.is_transfer}
    batches = {rank: one.waits_in for rank, one in found.items() if len(one.waits_in) > 1}
    held: dict[int, tuple[Launched, ...]] = {}
    is_new = True
    while is_new:
        lacking = {
            rank: tuple(
                e for e in batch if e.operation.peer in found and _other_end(rank, e) not in done
            )
            for rank, batch in batches.items()
            if rank not in held
        }
        more = {rank: parts for rank, parts in lacking.items() if parts}
        done -= {_end(rank, each) for rank in more for each in batches[rank]}
        held |= more
        is_new = bool(more)
    return {rank: _lacking(one, held[rank]) if rank in held else one for rank, one in found.items()}


def _lacking(one: Progress, parts: tuple[Launched, ...]) -> Progress:
    """Return the progress of a rank, given the parts of its batch that lack a partner."""
    matched = {id(each) for each in one.waits_in} - {id(each) for each in parts}
    reached = tuple(each for each in one.reached if id(each) not in matched)
    return replace(one, waits_in=parts, reached=reached)


_End = tuple[int, int | None, bool, int, int]
"""A rank's end of a transfer: the rank, its peer, whether it sends, the group, the number."""


def _end(rank: int, one: Launched) -> _End:
    operation = one.operation
    return rank, operation.peer, operation.name == "send", *one.place


def _other_end(rank: int, one: Launched) -> _End:
    operation = one.operation
    peer = operation.peer if operation.peer is not None else rank
    return peer, rank, operation.name != "send", *one.place


def _launched_counts(
    rank: int, groups: Iterable[int], joined: Joined, are_counts: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Yield how many collectives a rank has launched in each group, if that is known.

    Args:
        groups: The groups of which it is a member.
        are_counts: The groups whose counts are numbers of collectives.
    """
    recording, names = joined.recordings[rank], joined.names.get(rank, {})
    last: dict[str, int] = {}
    for entry in recording.entries:
        name = entry.process_group[0]
        last[name] = max(entry.collective_seq_id, last.get(name, 0))
    is_from_start = recording.is_from_start
    for group in groups:
        seen = last.get(names.get(group, ""))
        counts = joined.counts(rank, group)
        told = counts.launched if counts is not None and group in are_counts else 0
        is_unused = counts is None and (recording.has_all_counts or is_from_start)
        if seen is not None or told > 0 or is_unused:
            yield group, max(seen or 0, told, 0)


def _counted_groups(joined: Joined) -> frozenset[int]:
    """Return the groups whose counts are numbers of their collectives.

    Counts are the number of the last operation of any kind. The number of a transfer is local to
    its rank: in a pipeline the ranks' numbers differ although no rank is late.
    """
    agree: dict[int, bool] = {}
    for rank, recording in joined.recordings.items():
        lasts = {each.process_group[0]: each for each in recording.entries}
        for group, name in joined.names.get(rank, {}).items():
            counts, entry = recording.counts.get(name), lasts.get(name)
            if counts is not None and entry is not None:
                is_alike = entry.collective_seq_id == counts.launched and not entry.is_p2p
                agree[group] = is_alike and agree.get(group, True)
    return frozenset(group for group, is_alike in agree.items() if is_alike)


def _ended_for_all(
    collectives: Iterable[Launched], joined: Joined, are_counts: Collection[int]
) -> Mapping[int, int]:
    """Return by group the last collective that needs all members and has ended on a rank."""
    needing: dict[int, set[int]] = {}
    ended: dict[int, int] = {}
    for each in collectives:
        if not each.is_on_host and _needs_all(each.operation):
            needing.setdefault(each.group, set()).add(each.operation.sequence)
            if not each.operation.is_open:
                ended[each.group] = max(each.operation.sequence, ended.get(each.group, 0))
    for rank in joined.recordings:
        for group in joined.names.get(rank, {}):
            counts = joined.counts(rank, group)
            if counts is not None and group in are_counts:
                ended[group] = max(counts.completed, ended.get(group, 0))
    return {
        group: max((each for each in numbers if each <= ended.get(group, 0)), default=0)
        for group, numbers in needing.items()
    }


def _needs_all(operation: Operation) -> bool:
    """Return whether an operation certainly ends on no rank before all members have entered it."""
    found = of_flight_name(operation.name) if operation.kind == "collective" else None
    return found is not None and found.meets_all


def _standing(
    rank: int, theirs: Sequence[Launched], counts: Mapping[int, int], world: _DumpedWorld
) -> Progress:
    queued = [each for each in theirs if not each.is_on_host and each.operation.is_open]
    first = min(queued, key=lambda each: each.order, default=None)
    reached = [e for e in theirs if e.is_on_host or first is None or e.order <= first.order]
    behind = [e for e in theirs if not (e.is_on_host or first is None or e.order <= first.order)]
    entered = dict(counts)
    for each in behind:
        if not each.is_transfer and each.group in entered:
            entered[each.group] = min(entered[each.group], each.operation.sequence - 1)
    batch = [each for each in queued if first is not None and each.order == first.order]
    held = next((each for each in batch if world.has_ended(each)), None)
    on_host = [each for each in theirs if each.is_on_host and each.operation.is_open]
    gave_up = bool(theirs and not on_host and _was_given_up(theirs[-1], world))
    if gave_up:
        last = theirs[-1].operation
        on_host = [
            replace(theirs[-1], operation=replace(last, ended_s=None, waited_s=last.since_s))
        ]
    on_host = [each for each in on_host if not _may_lack_members(each, world)]
    return Progress(
        rank=rank,
        waits_in=(*on_host, *(() if held is not None else batch)),
        held_in=held.operation if held is not None else None,
        reached=tuple(reached),
        entered=entered,
        untold=frozenset(world.groups_of.get(rank, ())) - counts.keys(),
        gave_up=gave_up,
    )


def _may_lack_members(one: Launched, world: _DumpedWorld) -> bool:
    """Return whether no missing rank is known to be a member."""
    if one.operation.has_members or one.is_transfer:
        return False
    return world.least.get(one.group, one.operation.sequence) >= one.operation.sequence


def _was_given_up(last: Launched, world: _DumpedWorld) -> bool:
    """Return whether a rank's last operation ended without all members, that is, by a timeout."""
    number = last.operation.sequence
    is_early = world.least.get(last.group, number) < number
    return last.is_on_host and _needs_all(last.operation) and is_early


def _was_moving(
    own: Progress, joined: Joined, ahead_s: Mapping[int, float], world: _DumpedWorld
) -> bool:
    """Return whether an operation of concern to a rank moved since shortly before its dump.

    A rank that was dumped first looks late although it has moved since. The times of the files show
    this, unless a copy has lost them.
    """
    dumped_s = joined.recordings[own.rank].dumped_s
    if dumped_s is None:
        return False
    still_s = dumped_s - ahead_s[own.rank] - joined.origin_s - _SETTLED_S
    return any(at_s is not None and at_s > still_s for at_s in _concerning_s(own, joined, world))


def _concerning_s(own: Progress, joined: Joined, world: _DumpedWorld) -> Iterator[float | None]:
    """Yield when operations of a rank, or operations that lack its part, last moved."""
    theirs = joined.launched[own.rank]
    yield max((each.operation.since_s for each in theirs), default=None)
    yield world.awaits_s.get(own.rank)
    for group in world.groups_of.get(own.rank, ()):
        if group in world.began_s:
            yield world.began_s[group].after(own.entered.get(group, 0))
    if own.held_in is not None:
        yield max(
            (world.ends_s.get(e.place, 0.0) for e in theirs if e.operation is own.held_in),
            default=None,
        )
