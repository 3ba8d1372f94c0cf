"""The exchange: matches the operations of all ranks, and says which of them end with which result.

It is pure: launches in, completions out, no I/O and no time. Operations of a group match by their
number in the group. A collective matches only members that enter the same one with the same root;
others never meet, as with gloo.

An operation ends for a member as soon as gloo would let it go on, or earlier, never later. Measured
with gloo of torch 2.13, where a send waits for its receive:

* a member of a broadcast waits for those between it and the root, and for those that it sends to;
* the root of a gather, scatter or reduce waits for all, the others at most for the root;
* every other collective waits for all members.

NCCL runs the operations of a communicator on one stream. Launches may name such a stream: then an
operation meets others only when all earlier ones of its stream have ended.

With NCCL, the caller of such an operation goes on before it has ended. That is not simulated, but
the exchange says where it matters: see `is_left_early` and `may_go_on_alone`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_multihost.extensions.simulated.launches import Blob, Completion, Launch
from pytest_multihost.extensions.simulated.results import UnequalError, result_of

TRANSFERS = frozenset({"send", "recv"})

JOIN, AHEAD = "join", 1
"""The operation that makes a group or communicator, and its tag if the caller may launch others
before the operation has ended for which the communicator is made."""

_Place = tuple[str, int, str, int | None]
"""Where a collective's members meet: group, sequence, name, root."""

_Lane = tuple[str, int, int]
"""Where transfers meet: group, receiving member, tag."""


@dataclass(slots=True)
class _Meeting:
    """The members that have entered one collective.

    Attributes:
        entered: Their launches by their numbers in the group.
        waiting: The members for which it has not ended.
        reached: The members of a broadcast to which its data has come.
    """

    size: int
    root: int | None
    entered: dict[int, Launch] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)
    cache: dict[object, tuple[Blob, ...]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Batch:
    """Operations of one rank that start together.

    Attributes:
        stream: The rank and the name of its stream.
        running: The numbers of those that have not ended.
    """

    stream: tuple[int, str]
    launches: tuple[Launch, ...]
    running: set[int]


@dataclass(slots=True)
class Exchange:
    """All operations that have been launched and have not ended."""

    _streams: dict[tuple[int, str], deque[_Batch]] = field(default_factory=dict)
    _batch_of: dict[tuple[int, int], _Batch] = field(default_factory=dict)
    _meetings: dict[_Place, _Meeting] = field(default_factory=dict)
    _sends: dict[_Lane, deque[Launch]] = field(default_factory=dict)
    _receives: dict[_Lane, deque[Launch]] = field(default_factory=dict)
    _on_host: set[tuple[int, int]] = field(default_factory=set)

    def launch(self, *launches: Launch) -> list[Completion]:
        """Take launches of one rank; return the operations, of any rank, that they end.

        Args:
            launches: Several start together, as one step of their stream.
        """
        first = launches[0]
        if not first.stream:
            if first.operation != JOIN or first.tag == AHEAD:
                self._on_host |= {(each.rank, each.number) for each in launches}
            return self._start([_Batch((first.rank, ""), launches, set())])
        batch = _Batch((first.rank, first.stream), launches, {each.number for each in launches})
        stream = self._streams.setdefault(batch.stream, deque())
        stream.append(batch)
        for each in launches:
            self._batch_of[each.rank, each.number] = batch
        return self._start([batch] if stream[0] is batch else [])

    def is_left_early(self, rank: int, number: int) -> bool:
        """Return whether NCCL lets a rank go on from the wait for an operation that is open."""
        batch = self._batch_of.get((rank, number))
        if batch is None:
            return False
        return any(e.number == number and e.operation != "barrier" for e in batch.launches)

    def may_go_on_alone(self, rank: int, number: int) -> bool:
        """Return whether an open operation may end by what ranks do that NCCL lets go on.

        Those of NCCL do not: all that a rank launches comes after the operation that it waits for.
        """
        return (rank, number) in self._on_host

    def _start(self, batches: list[_Batch]) -> list[Completion]:
        """Let batches start; return all ends, also those in batches that can start then."""
        found: list[Completion] = []
        while batches:
            batch = batches.pop()
            ended = [end for each in batch.launches for end in self._enter(each)]
            found += ended
            self._on_host -= {(each.rank, each.number) for each in ended}
            batches += [each for end in ended for each in self._next_after(end)]
        return found

    def _next_after(self, ended: Completion) -> Iterator[_Batch]:
        """Yield the batch of the same stream that starts now that an operation has ended."""
        batch = self._batch_of.pop((ended.rank, ended.number), None)
        if batch is None:
            return
        batch.running.discard(ended.number)
        if not batch.running:
            stream = self._streams[batch.stream]
            stream.popleft()
            if stream:
                yield stream[0]
            else:
                del self._streams[batch.stream]

    def _enter(self, launch: Launch) -> list[Completion]:
        """Let an operation meet those of other ranks; return the operations that it ends."""
        if launch.operation in TRANSFERS:
            return self._transfer(launch)
        place = (launch.group, launch.sequence, launch.operation, launch.root)
        meeting = self._meetings.get(place)
        if meeting is None:
            meeting = self._meetings[place] = _Meeting(launch.size, launch.root)
        if launch.member in meeting.entered:
            return [_ended(launch, error=f"member {launch.member} of the group has entered twice")]
        meeting.entered[launch.member] = launch
        meeting.waiting.add(launch.member)
        ended = [self._end(each, meeting) for each in sorted(_free(launch, meeting))]
        if len(meeting.entered) == meeting.size and not meeting.waiting:
            del self._meetings[place]
        return ended

    def _end(self, member: int, meeting: _Meeting) -> Completion:
        meeting.waiting.discard(member)
        own = meeting.entered[member]
        try:
            blobs = tuple(result_of(member, meeting.entered, meeting.cache))
        except (UnequalError, RuntimeError, KeyError, IndexError) as error:
            return _ended(own, error=f"{own.operation}: {error}")
        return Completion(rank=own.rank, number=own.number, blobs=blobs)

    def _transfer(self, launch: Launch) -> list[Completion]:
        is_send = launch.operation == "send"
        receiver = launch.root if is_send else launch.member
        assert receiver is not None  # noqa: S101 - for the type checker
        lane = (launch.group, receiver, launch.tag)
        own, others = (self._sends, self._receives) if is_send else (self._receives, self._sends)
        for other in others.get(lane, ()):
            send, receive = (launch, other) if is_send else (other, launch)
            if receive.root in (None, send.member):
                others[lane].remove(other)
                return [
                    Completion(rank=send.rank, number=send.number),
                    Completion(
                        rank=receive.rank,
                        number=receive.number,
                        blobs=send.blobs,
                        source=send.member,
                    ),
                ]
        own.setdefault(lane, deque()).append(launch)
        return []


def _ended(launch: Launch, *, error: str) -> Completion:
    return Completion(rank=launch.rank, number=launch.number, error=error)


def _free(launch: Launch, meeting: _Meeting) -> set[int]:
    """Return the members that no longer wait, now that one more has entered."""
    is_full = len(meeting.entered) == meeting.size
    match launch.operation:
        case "broadcast":
            return _free_of_broadcast(launch.member, meeting)
        case "gather" | "reduce":
            early = {each for each in meeting.waiting if each != meeting.root}
            if launch.operation == "gather" and meeting.root not in meeting.entered:
                early = set()
            return set(meeting.waiting) if is_full else early
        case "scatter":
            if is_full:
                return set(meeting.waiting)
            has_root = meeting.root in meeting.entered
            return {each for each in meeting.waiting if each != meeting.root and has_root}
    return set(meeting.waiting) if is_full else set()


def _free_of_broadcast(member: int, meeting: _Meeting) -> set[int]:
    """Return the members of a broadcast that have the data and no longer send it."""
    root, size, entered = meeting.root or 0, meeting.size, meeting.entered
    touched = {member}
    parent = broadcast_parent(member, root, size)
    if parent is None or parent in meeting.reached:
        ahead = [member]
        while ahead:
            each = ahead.pop()
            meeting.reached.add(each)
            touched.add(each)
            ahead += [child for child in broadcast_children(each, root, size) if child in entered]
    if parent is not None:
        touched.add(parent)
    return {
        each
        for each in touched & meeting.waiting & meeting.reached
        if all(child in entered for child in broadcast_children(each, root, size))
    }


def broadcast_parent(member: int, root: int, size: int) -> int | None:
    """Return the member from which gloo's broadcast sends to `member`; None for the root."""
    virtual = (member - root) % size
    if virtual == 0:
        return None
    highest = 1 << (virtual.bit_length() - 1)
    return (virtual - highest + root) % size


def broadcast_children(member: int, root: int, size: int) -> Iterator[int]:
    """Yield the members to which `member` sends in gloo's broadcast."""
    virtual = (member - root) % size
    bit = 1 << virtual.bit_length()
    while virtual + bit < size:
        yield (virtual + bit + root) % size
        bit <<= 1
