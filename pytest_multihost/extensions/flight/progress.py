"""Derives how far each rank has come: what it waits in, and which operations it has reached.

A launched operation has not necessarily begun. A device queues operations: the rank is in the first
one that has not ended, and has not reached those behind it. For example, a pipeline stage has
launched ten collectives behind a receive. It is late in none of them; it waits for the stage
before. On the CPU each operation begins when it is launched.

Other ranks' dumps show more than a rank's own. If one of them shows the end of a collective that
needs all members, each member has taken part. If a member's own dump lacks that end, the member
itself is stuck: its device, or the thread that watches it, has stopped. If a member's dump does not
even show the beginning, it was taken at an earlier time, and nothing follows from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_multihost.core.model.collectives import of_flight_name
from pytest_multihost.core.model.operation import GroupKey, Operation
from pytest_multihost.extensions.flight.launched import Joined, Launched

_SETTLED_S = 1.0
"""A rank and those that share groups with it must have rested this long before its dump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one rank has come.

    Attributes:
        waits_in: Operations that it waits in; several if they were launched as one.
        held_in: The operation on its device that has ended on other ranks but not here.
        reached: The operations that have begun.
        entered: By group, the number of the last collective that it has reached.
        is_old: Whether its dump was taken before those of others, while ranks moved.
        gave_up: Whether the operation it waited in has ended without all members.
    """

    rank: int
    waits_in: tuple[Operation, ...] = ()
    held_in: Operation | None = None
    reached: tuple[Operation, ...] = ()
    entered: Mapping[GroupKey, int]
    is_old: bool = False
    gave_up: bool = False


def progress_of(joined: Joined, ahead_s: Mapping[int, float]) -> Mapping[int, Progress]:
    """Return how far each rank with a dump has come.

    Args:
        ahead_s: By rank, how far its clock is ahead, in seconds.
    """
    launched = {rank: dict(_launched_counts(rank, joined)) for rank in joined.recordings}
    ended = {key: _ended_for_all(key, joined) for key in joined.groups}
    found = {}
    for rank, counts in launched.items():
        one = _standing(rank, joined, counts, ended, launched)
        # Others have seen the end of a collective that its dump does not show launched, so the
        # dump is older than theirs.
        is_behind = any(count < ended.get(key, 0) for key, count in counts.items())
        if is_behind or _was_moving(one, joined, ahead_s):
            one = replace(one, waits_in=(), held_in=None, is_old=True)
        found[rank] = one
    return _without_held_parts(found)


def _without_held_parts(found: Mapping[int, Progress]) -> Mapping[int, Progress]:
    """Return the progress without the matched transfers of a batch that another part holds back.

    Transfers that were launched as one end together. A rank whose own transfer is matched therefore
    waits until the peer's whole batch has its partners.
    """
    done = {_end(rank, each) for rank, one in found.items() for each in one.reached}
    batches = {rank: one.waits_in for rank, one in found.items() if len(one.waits_in) > 1}
    held: dict[int, tuple[Operation, ...]] = {}
    is_new = True
    while is_new:
        lacking = {
            rank: tuple(e for e in batch if e.peer in found and _other_end(rank, e) not in done)
            for rank, batch in batches.items()
            if rank not in held
        }
        more = {rank: parts for rank, parts in lacking.items() if parts}
        done -= {_end(rank, each) for rank in more for each in batches[rank]}
        held |= more
        is_new = bool(more)
    return {rank: _lacking(one, held[rank]) if rank in held else one for rank, one in found.items()}


def _lacking(one: Progress, parts: tuple[Operation, ...]) -> Progress:
    """Return the progress of a rank, given the parts of its batch that lack a partner."""
    matched = {id(each) for each in one.waits_in} - {id(each) for each in parts}
    reached = tuple(each for each in one.reached if id(each) not in matched)
    return replace(one, waits_in=parts, reached=reached)


_End = tuple[int, int | None, bool, GroupKey, int]
"""A rank's end of a transfer: the rank, its peer, whether it sends, the group, the number."""


def _end(rank: int, operation: Operation) -> _End:
    sends = operation.name == "send"
    return rank, operation.peer, sends, operation.group_key, operation.sequence


def _other_end(rank: int, operation: Operation) -> _End:
    peer = operation.peer if operation.peer is not None else rank
    return peer, rank, operation.name != "send", operation.group_key, operation.sequence


def _launched_counts(rank: int, joined: Joined) -> Iterator[tuple[GroupKey, int]]:
    """Yield how many collectives a rank has launched in each group, if that is known."""
    recording, names = joined.recordings[rank], joined.names(rank)
    for key in joined.groups:
        if rank not in key[0]:
            continue
        seen = [
            e.collective_seq_id for e in recording.entries if _is_of(e.process_group[0], key, names)
        ]
        counts = recording.counts.get(names.get(key, ""))
        told = counts.launched if counts is not None and _counts_collectives(key, joined) else 0
        is_unused = counts is None and (recording.has_all_counts or recording.is_from_start)
        if seen or told > 0 or is_unused:
            yield key, max([*seen, told, 0])


def _is_of(name: str, key: GroupKey, names: Mapping[GroupKey, str]) -> bool:
    return names.get(key) == name


def _counts_collectives(key: GroupKey, joined: Joined) -> bool:
    """Return whether the counts of a group are numbers of its collectives.

    They are the number of the last operation of any kind. The number of a transfer is local to its
    rank: in a pipeline the ranks' numbers differ although no rank is late.
    """
    found = [
        entry.collective_seq_id == counts.launched and not entry.is_p2p
        for rank, recording in joined.recordings.items()
        if (name := joined.names(rank).get(key)) is not None
        and (counts := recording.counts.get(name)) is not None
        for entry in [e for e in recording.entries if e.process_group[0] == name][-1:]
    ]
    return bool(found) and all(found)


def _ended_for_all(key: GroupKey, joined: Joined) -> int:
    """Return the last collective of a group that needs all members and has ended on a rank."""
    needing = {
        each.operation.sequence
        for theirs in joined.launched.values()
        for each in theirs
        if each.operation.group_key == key and not each.is_on_host and _needs_all(each.operation)
    }
    ended = [
        each.operation.sequence
        for theirs in joined.launched.values()
        for each in theirs
        if each.operation.group_key == key
        and each.operation.sequence in needing
        and not each.operation.is_open
    ]
    if _counts_collectives(key, joined):
        ended += [
            counts.completed
            for rank, recording in joined.recordings.items()
            if (counts := recording.counts.get(joined.names(rank).get(key, ""))) is not None
        ]
    last = max(ended, default=0)
    return max((each for each in needing if each <= last), default=0)


def _needs_all(operation: Operation) -> bool:
    """Return whether an operation certainly ends on no rank before all members have entered it."""
    found = of_flight_name(operation.name) if operation.kind == "collective" else None
    return found is not None and found.meets_all


def _standing(
    rank: int,
    joined: Joined,
    counts: Mapping[GroupKey, int],
    ended: Mapping[GroupKey, int],
    launched: Mapping[int, Mapping[GroupKey, int]],
) -> Progress:
    theirs = joined.launched[rank]
    queued = [each for each in theirs if not each.is_on_host and each.operation.is_open]
    first = min(queued, key=lambda each: each.order, default=None)
    reached = [e for e in theirs if e.is_on_host or first is None or e.order <= first.order]
    entered = {key: _reached_count(key, count, theirs, reached) for key, count in counts.items()}
    batch = [e.operation for e in queued if first is not None and e.order == first.order]
    held = next((e for e in batch if _has_ended(e, ended)), None)
    on_host = [e.operation for e in theirs if e.is_on_host and e.operation.is_open]
    gave_up = bool(
        theirs and not on_host and _was_given_up(theirs[-1], launched, joined.recordings)
    )
    if gave_up:
        last = theirs[-1].operation
        on_host = [replace(last, ended_s=None, waited_s=last.since_s)]
    on_host = [each for each in on_host if not _may_lack_members(each, launched)]
    return Progress(
        rank=rank,
        waits_in=(*on_host, *(() if held is not None else batch)),
        held_in=held,
        reached=tuple(each.operation for each in reached),
        entered=entered,
        gave_up=gave_up,
    )


def _may_lack_members(operation: Operation, launched: Mapping[int, Mapping[GroupKey, int]]) -> bool:
    """Return whether every missing rank is one that is not known to be a member."""
    if operation.has_members or operation.kind == "transfer":
        return False
    counts = [launched.get(rank, {}).get(operation.group_key) for rank in operation.group]
    return all(count is None or count >= operation.sequence for count in counts)


def _has_ended(operation: Operation, ended: Mapping[GroupKey, int]) -> bool:
    is_known = operation.kind == "collective"
    return is_known and operation.sequence <= ended.get(operation.group_key, 0)


def _reached_count(
    key: GroupKey, count: int, theirs: Collection[Launched], reached: Collection[Launched]
) -> int:
    """Return how many of a group's `count` launched collectives a rank has reached."""
    own = [e for e in theirs if e.operation.group_key == key and e.operation.kind == "collective"]
    inside = {id(each) for each in reached}
    behind = [each.operation.sequence for each in own if id(each) not in inside]
    return min([count, *(each - 1 for each in behind)])


def _was_given_up(
    last: Launched, launched: Mapping[int, Mapping[GroupKey, int]], dumped: Collection[int]
) -> bool:
    """Return whether a rank's last operation ended without all members, that is, by a timeout."""
    operation = last.operation
    return (
        last.is_on_host
        and _needs_all(operation)
        and any(
            launched[each].get(operation.group_key, operation.sequence) < operation.sequence
            for each in operation.group
            if each in dumped
        )
    )


def _was_moving(own: Progress, joined: Joined, ahead_s: Mapping[int, float]) -> bool:
    """Return whether an operation that concerns a rank began after its dump, or just before it.

    A rank that was dumped first looks late although it has moved since. The times of the files show
    this, unless a copy has lost them.
    """
    dumped_s = joined.recordings[own.rank].dumped_s
    if dumped_s is None:
        return False
    still_s = dumped_s - ahead_s[own.rank] - joined.origin_s - _SETTLED_S
    return any(
        each.operation.since_s > still_s and (rank == own.rank or _concerns(each.operation, own))
        for rank, theirs in joined.launched.items()
        for each in theirs
    )


def _concerns(operation: Operation, own: Progress) -> bool:
    """Return whether another rank's operation needs `own`, which has not done its part of it."""
    if operation.kind == "transfer":
        return operation.peer == own.rank and operation.is_open
    is_behind = operation.sequence > own.entered.get(operation.group_key, 0)
    return own.rank in operation.group and is_behind
