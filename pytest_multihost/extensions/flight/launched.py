"""Joins the entries of all dumps to the operations that the ranks have launched in each group.

Two ranks mean the same group if its members and its name are the same; the number that an entry
gives to a group (`pg_id`) is local to one rank. All members of a group number its collectives
alike. Transfers are different: each rank numbers all of its own in a group, whatever the peer. This
module therefore numbers them anew for each pair of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from pytest_multihost.core.model.collectives import of_flight_name
from pytest_multihost.core.model.operation import (
    GroupKey,
    Operation,
    Payload,
    Scope,
    group_by_value,
)
from pytest_multihost.core.model.stack import innermost_user_frame
from pytest_multihost.extensions.flight.recording import Counts, Entry, Recording

_RUNTIME = Scope()

DEFAULT_GROUP = "0"
"""The name that torch gives to the group of `init_process_group`."""

_BATCH_END = "coalesced"
_LAUNCHERS = frozenset({"isend", "irecv", "batch_isend_irecv"})
"""Functions of torch that launch a transfer and do not wait for its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One operation that a rank has launched.

    Attributes:
        order: Position among all operations of the rank; all parts of a coalesced operation have
            the position of its last one.
        counted: The rank's own number for it within the group; other ranks may count differently.
        group: Number of its group in `Joined.groups`.
        is_on_host: Whether the CPU performs it, not a device.
    """

    order: int
    counted: int
    operation: Operation
    group: int
    is_on_host: bool

    @property
    def is_transfer(self) -> bool:
        """Whether it is a send or a receive."""
        return self.operation.kind == "transfer"

    @property
    def place(self) -> tuple[int, int]:
        """Its group and its number there, equal on all members."""
        return self.group, self.operation.sequence


@dataclass(frozen=True, slots=True)
class Joined:
    """The dumps of a world, joined.

    Attributes:
        groups: The keys of all groups; elsewhere a group is its index here, because a key with
            thousands of members takes long to look up.
        names: By rank, the names of its groups.
        launched: The operations that each rank has launched, in order.
        unrecorded: By rank, groups and peers: it may have made transfers without a record.
        origin_s: The instant on the wall clock at which all times begin.
    """

    size: int
    recordings: Mapping[int, Recording]
    groups: Sequence[GroupKey]
    names: Mapping[int, Mapping[int, str]]
    launched: Mapping[int, tuple[Launched, ...]]
    unrecorded: Mapping[int, frozenset[tuple[GroupKey, int | None]]]
    origin_s: float

    def counts(self, rank: int, group: int) -> Counts | None:
        """Return a rank's counts of a group, if its dump has them."""
        name = self.names.get(rank, {}).get(group)
        return self.recordings[rank].counts.get(name) if name is not None else None

    def title(self, rank: int, group: int) -> str:
        """Return the name that the program gives to a rank's group; mostly empty."""
        return self.recordings[rank].titles.get(self.names[rank].get(group, ""), "")


def join(
    recordings: Sequence[Recording], ahead_s: Mapping[int, float], *, ranks: Sequence[int] = ()
) -> Joined:
    """Return the dumps of a world, joined.

    Args:
        ahead_s: By rank, how far its clock is ahead, in seconds.
        ranks: Ranks that are known to exist besides the ranks that dumps name.
    """
    members = _members(recordings)
    keys = _keys(members)
    groups = [*dict.fromkeys(keys.values())]
    by_identity = {id(key): number for number, key in enumerate(groups)}
    numbers = {place: by_identity[id(key)] for place, key in keys.items()}
    names: dict[int, dict[int, str]] = {}
    for (rank, name), number in numbers.items():
        names.setdefault(rank, {})[number] = name
    origin_s = min(
        (e.time_created_ns / 1e9 - ahead_s[r.rank] for r in recordings for e in r.entries),
        default=0.0,
    )
    singly = {
        each.rank: tuple(_of_rank(each, members, groups, numbers, origin_s + ahead_s[each.rank]))
        for each in recordings
    }
    by_rank = {each.rank: each for each in recordings}
    launched, lacking = _with_transfers_counted(singly, by_rank)
    return Joined(
        size=max(*(key[0][-1] for key in groups if key[0]), *by_rank, *ranks) + 1,
        recordings=by_rank,
        groups=groups,
        names=names,
        launched=launched,
        unrecorded={
            rank: frozenset((groups[group], peer) for group, peer in pairs)
            for rank, pairs in lacking.items()
        },
        origin_s=origin_s,
    )


def _members(recordings: Sequence[Recording]) -> Mapping[tuple[int, str], tuple[int, ...]]:
    """Return the members of each rank's groups, in the groups' order, by rank and name.

    If a rank's dump does not list the members of a group, the list of another member's dump is
    used. Failing that, the default group has all ranks, and another group has the ranks that are
    seen to have used it.
    """
    # Most dumps of a group list the same members, which `recording` makes one object: work that
    # takes time with their number is done once for each object, not for each rank.
    found = {(r.rank, name): ranks for r in recordings for name, ranks in r.members.items()}
    distinct = {(name, id(ranks)): ranks for (_, name), ranks in found.items()}
    listed = group_by_value((name, ranks) for (name, _), ranks in distinct.items())
    last = max([r.rank for r in recordings] + [max(each, default=0) for each in distinct.values()])
    everyone = tuple(range(last + 1))
    used = group_by_value((name, r.rank) for r in recordings for name in r.titles)
    for name, ranks in used.items():
        users = everyone if name == DEFAULT_GROUP else tuple(sorted(ranks))
        for rank in ranks:
            if (rank, name) not in found:
                of_others = (each for each in listed.get(name, []) if rank in each)
                found[rank, name] = next(of_others, users)
    for name in {DEFAULT_GROUP} & used.keys():  # it includes ranks that have not used it
        for each in recordings:
            found.setdefault((each.rank, name), everyone)
    return found


def _keys(members: Mapping[tuple[int, str], tuple[int, ...]]) -> Mapping[tuple[int, str], GroupKey]:
    """Return the keys of groups. Groups with the same members are ordered by name.

    Names are numbers in the order of creation, or hashes.
    """
    distinct = {(id(ranks), name): ranks for (_, name), ranks in members.items()}
    names: dict[tuple[int, ...], set[str]] = {}
    for (_, name), ranks in distinct.items():
        names.setdefault(tuple(sorted(ranks)), set()).add(name)
    keys: dict[tuple[tuple[int, ...], str], GroupKey] = {  # equal keys are one object
        (ranks, name): (ranks, ordinal, _RUNTIME)
        for ranks, each in names.items()
        for ordinal, name in enumerate(sorted(each, key=lambda n: (len(n), n)))
    }
    found = {(at, name): keys[tuple(sorted(ranks)), name] for (at, name), ranks in distinct.items()}
    return {(rank, name): found[id(ranks), name] for (rank, name), ranks in members.items()}


def _of_rank(
    recording: Recording,
    members: Mapping[tuple[int, str], tuple[int, ...]],
    groups: Sequence[GroupKey],
    numbers: Mapping[tuple[int, str], int],
    origin_s: float,
) -> Iterator[Launched]:
    places = set()
    for entry, order, is_over in _as_whole(recording.entries):
        name = entry.process_group[0]
        number, title = numbers[recording.rank, name], recording.titles.get(name, "")
        of_group = members[recording.rank, name]
        peer = _peer(entry, recording.rank, of_group)
        if peer == recording.rank:
            continue  # a transfer to itself, or the members are unknown
        operation = _operation(
            entry,
            groups[number],
            peer=peer,
            title=title,
            has_members=name in recording.members or name == DEFAULT_GROUP,
            origin_s=origin_s,
            is_over=is_over,
        )
        if not entry.is_p2p:  # the parts of a coalesced collective count as one operation
            if (name, operation.sequence) in places:
                continue
            places.add((name, operation.sequence))
        counted = entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id
        yield Launched(
            order=order,
            counted=counted,
            operation=operation,
            group=number,
            is_on_host=entry.is_on_host,
        )


def _as_whole(entries: Sequence[Entry]) -> Iterator[tuple[Entry, int, bool]]:
    """Yield each entry with its position in the order, and whether its operation has ended.

    Only the last entry of a coalesced operation has a state, which holds for those before it.
    """
    ends = {_batch(each): each for each in entries if each.name == _BATCH_END}
    parts = {_batch(each) for each in entries if each.name != _BATCH_END}
    for each in entries:
        end = ends.get(_batch(each), each)
        if each is not end or _batch(each) not in parts or each.name != _BATCH_END:
            yield each, max(end.record_id, each.record_id), _is_over(end)


def _batch(entry: Entry) -> tuple[str, bool, int]:
    counted = entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id
    return entry.process_group[0], entry.is_p2p, counted


def _is_over(entry: Entry) -> bool:
    """Return whether a dump shows that an operation has ended.

    On a device, `retired` does not show that, because the watchdog also retires failed operations.
    CPU backends record no state (torch 2.13); they retire every operation that has ended, failed or
    not.
    """
    return entry.state == "completed" or (entry.is_on_host and entry.retired)


def _peer(entry: Entry, rank: int, members: Sequence[int]) -> int | None:
    """Return the other rank of a transfer; the rank itself if it is unknown; None if there is none.

    Args:
        members: Of its group, in the group's order.
    """
    ends = entry.ends if entry.is_p2p else None
    if ends is None:
        return None
    inside = [members[each] for each in ends if each < len(members)]
    others = [each for each in inside if each != rank]
    return others[0] if len(inside) == len(ends) and len(others) == 1 else rank


def _operation(
    entry: Entry,
    key: GroupKey,
    *,
    peer: int | None,
    title: str,
    has_members: bool,
    origin_s: float,
    is_over: bool,
) -> Operation:
    since_s = entry.time_created_ns / 1e9 - origin_s
    ended_s = max(since_s, (entry.time_discovered_completed_ns or 0) / 1e9 - origin_s)
    stack = entry.stack
    is_launched = entry.is_on_host and any(each.function in _LAUNCHERS for each in stack)
    group, ordinal, scope = key
    return Operation(
        name=entry.name,
        kind="transfer" if peer is not None else "collective",
        group=group,
        ordinal=ordinal,
        scope=scope,
        group_title=title,
        has_members=has_members,
        sequence=0 if peer is not None else entry.collective_seq_id,
        peer=peer,
        payload=_payload(entry),
        detail=entry.detail,
        since_s=since_s,
        ended_s=ended_s if is_over else None,
        waited_s=None if is_launched or is_over else since_s,
        frame=innermost_user_frame(stack),
        source="flight-recorder",
    )


def _payload(entry: Entry) -> Payload:
    """Return the types and sizes in which the members must agree, as far as they are recorded.

    A shape does not matter, only how many elements it has. Of most collectives sizes may differ.
    Of sparse tensors they may differ in each, and a transfer has the same at both ends.
    """
    found = of_flight_name(entry.name)
    if (found is None and not entry.is_p2p) or "sparse" in entry.name:
        return ()
    if not (entry.is_p2p or (found is not None and found.has_one_size)):
        types = entry.input_dtypes or entry.output_dtypes
        return tuple((each, 0) for each in sorted(set(types)))
    if entry.name == "recv" and entry.output_dtypes:
        return tuple(zip(entry.output_dtypes, map(prod, entry.output_shapes), strict=False))
    return tuple(zip(entry.input_dtypes, map(prod, entry.input_shapes), strict=False))


_Pair = tuple[int, int, int]
"""A group, the sender, the receiver."""


def _with_transfers_counted(
    launched: Mapping[int, tuple[Launched, ...]], recordings: Mapping[int, Recording]
) -> tuple[Mapping[int, tuple[Launched, ...]], Mapping[int, set[tuple[int, int]]]]:
    """Return the operations, with each transfer numbered alike at its sender and its receiver.

    Also return, by rank, groups and peers if the rank has recorded no transfer there although its
    peer has, and its dump is not complete.
    """
    sides = group_by_value(
        ((_pair(rank, each), rank), each)
        for rank, theirs in launched.items()
        for each in theirs
        if each.is_transfer
    )
    from_start = {rank: each.is_from_start for rank, each in recordings.items()}
    numbers: dict[int, int] = {}
    lacking: dict[int, set[tuple[int, int]]] = {}
    for pair in dict.fromkeys(pair for pair, _ in sides):
        both = [sides.get((pair, rank), []) for rank in pair[1:]]
        found = _numbers(both, [from_start.get(rank, False) for rank in pair[1:]])
        for theirs, counts in zip(both, found, strict=True):
            numbers.update(zip(map(id, theirs), counts, strict=True))
        for rank, peer, theirs in zip(pair[1:], pair[:0:-1], both, strict=True):
            if not theirs and not from_start.get(rank, False):
                lacking.setdefault(rank, set()).add((pair[0], peer))
    return {
        rank: tuple(
            replace(each, operation=replace(each.operation, sequence=numbers[id(each)]))
            if id(each) in numbers
            else each
            for each in theirs
        )
        for rank, theirs in launched.items()
    }, lacking


def _pair(rank: int, launched: Launched) -> _Pair:
    operation = launched.operation
    peer = operation.peer if operation.peer is not None else rank
    ends = (rank, peer) if operation.name == "send" else (peer, rank)
    return (launched.group, *ends)


def _numbers(
    both: Sequence[Sequence[Launched]], are_from_start: Sequence[bool]
) -> Sequence[Sequence[int]]:
    """Return the numbers of a sender's transfers and of its receiver's.

    If both dumps are complete, the transfers are counted from the first one. In a group of two, the
    ranks' own numbers agree. Otherwise both sides count from the last transfer that has ended,
    because a transfer that has ended at one end has ended at the other.
    """
    if all(are_from_start):
        return [range(1, len(each) + 1) for each in both]
    counted = [[each.counted for each in side] for side in both]
    is_pair = all(len(each.operation.group) == len(both) for side in both for each in side)
    if is_pair and all(len({*side}) == len(side) for side in counted):
        return counted
    firsts = [e.counted for side in both for e in [x for x in side if x.operation.is_open][:1]]
    base = max(1, *firsts, 1) - 1
    found = []
    for side in both:
        ended = sum(not each.operation.is_open for each in side)
        found.append([max(0, base + number - ended) for number in range(1, len(side) + 1)])
    return found
