"""The exchange: matches the operations of all ranks, and says which of them end with which result.

It is pure: launches in, completions out, no I/O and no time. Operations of a group match by their
number in the group. A collective matches only members that enter the same one with the same root;
others never meet, as with gloo. But gloo does not compare roots. So a broadcast reaches a member
that names another root if it expects the data from the same member, and a reduction of few elements
has nothing to send to its root.

An operation ends for a member as soon as gloo would let it go on, or earlier, never later. Measured
with gloo of torch 2.13, where a send waits for its receive:

* a member of a broadcast waits for the members between it and the root, and for its receivers;
* the root of a gather or scatter waits for all members, and each other member for the root;
* a reduction of few elements may end early for all but its root; a large one waits for all members;
* every other collective waits for all members.

A member whose timeout has struck, or that has destroyed the group, is lost to the group: gloo then
closes its connections. Operations of other members that need it fail, and so do all of its own.

NCCL runs the operations of a communicator on one stream. Launches may name such a stream: then an
operation meets others only when all earlier ones of its stream have ended.

With NCCL, the caller of such an operation goes on before it has ended. That is not simulated, but
the exchange says where it matters: see `is_left_early`, `may_go_on_alone` and `stuck_ranks`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from pytest_multihost.extensions.simulated.launches import Blob, Completion, SimulatedLaunch
from pytest_multihost.extensions.simulated.results import UnequalError, result_of

TRANSFERS = frozenset({"send", "recv"})

JOIN, AHEAD = "join", 1
"""The operation that makes a group or communicator, and its tag if the caller may launch others
before the operation has ended for which the communicator is made."""

_Place = tuple[str, int, str, int | None]
"""Where a collective's members meet: group, sequence, name, root if it must be the same."""

_Lane = tuple[str, int, int]
"""Where transfers meet: group, receiving member, tag."""

_CLOSED = "Application timeout caused pair closure"
"""gloo's error for an operation of a member whose timeout has struck."""


@dataclass(slots=True)
class _Meeting:
    """The members that have entered one collective.

    Attributes:
        entered: Their launches by their numbers in the group.
        waiting: The members for which it has not ended.
        reached: The members of a broadcast that have got the data, each with its sender.
        failed: The members for which it has failed: they send nothing more.
    """

    size: int
    root: int | None
    entered: dict[int, SimulatedLaunch] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    reached: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    cache: dict[object, tuple[Blob, ...]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Batch:
    """Operations of one rank that start together.

    Attributes:
        stream: The rank and the name of its stream.
        running: The numbers of the operations that have not ended.
    """

    stream: tuple[int, str]
    launches: tuple[SimulatedLaunch, ...]
    running: set[int]


@dataclass(slots=True)
class Exchange:
    """All operations that have been launched and have not ended.

    Of a group whose members have all closed their connections only the name is kept.
    """

    _streams: dict[tuple[int, str], deque[_Batch]] = field(default_factory=dict)
    _batch_of: dict[tuple[int, int], _Batch] = field(default_factory=dict)
    _meetings: dict[_Place, _Meeting] = field(default_factory=dict)
    _sends: dict[_Lane, deque[SimulatedLaunch]] = field(default_factory=dict)
    _receives: dict[_Lane, deque[SimulatedLaunch]] = field(default_factory=dict)
    _on_host: set[tuple[int, int]] = field(default_factory=set)
    _lost: dict[str, dict[int, str]] = field(default_factory=dict)
    _joined: dict[int, dict[str, int]] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _closed: set[str] = field(default_factory=set)

    def launch(self, *launches: SimulatedLaunch) -> list[Completion]:
        """Take launches of one rank; return the operations, of any rank, that they end.

        Args:
            launches: Several start together, as one step of their stream.
        """
        first = launches[0]
        if not first.stream:
            if first.operation == JOIN and first.tag != AHEAD:
                self._joined.setdefault(first.rank, {})[first.group] = first.member
                self._sizes[first.group] = first.size
            if first.operation != JOIN or first.tag == AHEAD:
                self._on_host |= {(each.rank, each.number) for each in launches}
            return self._start([_Batch((first.rank, ""), launches, set())])
        batch = _Batch((first.rank, first.stream), launches, {each.number for each in launches})
        stream = self._streams.setdefault(batch.stream, deque())
        stream.append(batch)
        for each in launches:
            self._batch_of[each.rank, each.number] = batch
        return self._start([batch] if stream[0] is batch else [])

    def lose(self, group: str, member: int, why: str) -> list[Completion]:
        """Record that a member has closed its connections in a group; return the ended operations.

        Args:
            why: The reason, for the errors of the others.
        """
        if group in self._closed:
            return []
        lost = self._lost.setdefault(group, {})
        lost[member] = why
        ended = []
        for place, meeting in list(self._meetings.items()):
            if place[0] == group:
                for each in sorted(meeting.waiting):
                    ended += self._fail(meeting.entered[each], meeting)
        for lanes in (self._sends, self._receives):
            for launches in [found for lane, found in lanes.items() if lane[0] == group]:
                for launch in list(launches):
                    if error := self._failure(launch):
                        launches.remove(launch)
                        ended.append(_ended(launch, error=error))
        self._on_host -= {(each.rank, each.number) for each in ended}
        if len(lost) == self._sizes.get(group):
            self._close(group)
        return ended

    def _close(self, group: str) -> None:
        """Forget a group whose members have all closed their connections there."""
        self._closed.add(group)
        del self._lost[group], self._sizes[group]
        for joined in self._joined.values():
            joined.pop(group, None)
        for place in [each for each in self._meetings if each[0] == group]:
            del self._meetings[place]
        for lanes in (self._sends, self._receives):
            for lane in [each for each in lanes if each[0] == group]:
                del lanes[lane]

    def lose_rank(self, rank: int) -> list[Completion]:
        """Record that the process of a rank has ended; return ended operations, as with gloo."""
        why = f"rank {rank} has ended"
        groups = self._joined.pop(rank, {})
        return [end for group, member in groups.items() for end in self.lose(group, member, why)]

    def _fail(self, launch: SimulatedLaunch, meeting: _Meeting) -> list[Completion]:
        """Return the end of a collective for a member that needs something of a lost one."""
        if not (error := self._failure(launch, meeting)):
            return []
        meeting.waiting.discard(launch.member)
        meeting.failed.add(launch.member)
        return [_ended(launch, error=error)]

    def _failure(self, launch: SimulatedLaunch, meeting: _Meeting | None = None) -> str:
        """Return why an operation fails in a group that has lost members; empty: it does not.

        One of NCCL never does: its members are not told.
        """
        lost = self._lost.get(launch.group, {}) if not launch.stream else {}
        if launch.member in lost or (launch.group in self._closed and not launch.stream):
            return _CLOSED
        for member, why in lost.items():
            if (meeting is None and launch.root == member) or (
                meeting is not None and _needs(launch, member, meeting)
            ):
                return f"Connection closed by peer: {why}"
        return ""

    def _has_lost(self, group: str) -> bool:
        """Return whether a member of a group has closed its connections."""
        return group in self._lost or group in self._closed

    def is_left_early(self, rank: int, number: int) -> bool:
        """Return whether NCCL lets a rank go on from the wait for an operation that is open."""
        batch = self._batch_of.get((rank, number))
        if batch is None:
            return False
        return any(e.number == number and e.operation != "barrier" for e in batch.launches)

    def may_go_on_alone(self, rank: int, number: int) -> bool:
        """Return whether an open operation may end through ranks that NCCL lets go on.

        An operation of NCCL does not: all that a rank launches comes after the one it waits for.
        """
        return (rank, number) in self._on_host

    def stuck_ranks(self, waits: Mapping[int, AbstractSet[int]], size: int) -> AbstractSet[int]:
        """Return ranks that cannot go on, whatever the ranks do that NCCL lets go on.

        Each of them waits on the host for at least one other of them.

        Args:
            waits: The open operations that a rank's threads wait for, by rank.
        """
        missing = self._missing(size)
        stuck = {
            rank for rank, own in waits.items() if own and {(rank, n) for n in own} <= {*missing}
        }
        while loose := {
            rank for rank in stuck if any(stuck.isdisjoint(missing[rank, n]) for n in waits[rank])
        }:
            stuck -= loose
        return stuck

    def _missing(self, size: int) -> Mapping[tuple[int, int], AbstractSet[int]]:
        """Return the ranks that an operation waits for, if it keeps its rank on the host."""
        found: dict[tuple[int, int], AbstractSet[int]] = {}
        for (_, _, operation, _), meeting in self._meetings.items():
            if operation not in (JOIN, "barrier"):
                continue
            waiting = [meeting.entered[member] for member in meeting.waiting]
            if meeting.size == size:  # its members are the ranks
                others = {*range(size)} - meeting.entered.keys()
                found.update({(each.rank, each.number): others for each in waiting})
            else:
                pairs = {(e.rank, e.number): {e.peer} for e in waiting if e.peer is not None}
                found.update(pairs)
        return found

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

    def _enter(self, launch: SimulatedLaunch) -> list[Completion]:
        """Let an operation meet those of other ranks; return the operations that it ends."""
        if launch.operation in TRANSFERS:
            if self._has_lost(launch.group) and (error := self._failure(launch)):
                return [_ended(launch, error=error)]
            return self._transfer(launch)
        root = None if _meets_any_root(launch) else launch.root
        place = (launch.group, launch.sequence, launch.operation, root)
        meeting = self._meetings.get(place)
        if meeting is None:
            meeting = self._meetings[place] = _Meeting(launch.size, launch.root)
        if launch.member in meeting.entered:
            return [_ended(launch, error=f"member {launch.member} of the group has entered twice")]
        meeting.entered[launch.member] = launch
        meeting.waiting.add(launch.member)
        failed = self._fail(launch, meeting) if self._has_lost(launch.group) else []
        ended = [*failed, *(self._end(each, meeting) for each in sorted(_free(launch, meeting)))]
        if len(meeting.entered) == meeting.size and not meeting.waiting:
            del self._meetings[place]
        return ended

    def _end(self, member: int, meeting: _Meeting) -> Completion:
        meeting.waiting.discard(member)
        own, members = meeting.entered[member], meeting.entered
        source = meeting.reached.get(member, own.root)
        if source != own.root:
            members = {**members, member: replace(own, root=source)}
        try:
            blobs = tuple(result_of(member, members, meeting.cache))
        except (UnequalError, RuntimeError, KeyError, IndexError) as error:
            return _ended(own, error=f"{own.operation}: {error}")
        return Completion(rank=own.rank, number=own.number, blobs=blobs)

    def _transfer(self, launch: SimulatedLaunch) -> list[Completion]:
        is_send = launch.operation == "send"
        receiver = launch.root if is_send else launch.member
        assert receiver is not None  # noqa: S101 - for the type checker
        lane = (launch.group, receiver, launch.tag)
        own, others = (self._sends, self._receives) if is_send else (self._receives, self._sends)
        for other in others.get(lane, ()):
            send, receive = (launch, other) if is_send else (other, launch)
            if receive.root in (None, send.member):
                others[lane].remove(other)
                if not others[lane]:
                    del others[lane]
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


def lost_by_timeout(launch: SimulatedLaunch) -> str:
    """Return why a member is lost to a group, whose operation has not ended in time."""
    return f"the timeout of rank {launch.rank}'s {launch.operation} has struck"


def _ended(launch: SimulatedLaunch, *, error: str) -> Completion:
    return Completion(rank=launch.rank, number=launch.number, error=error)


_LARGEST = 8
"""Bytes of the largest element that gloo reduces."""


def _meets_any_root(launch: SimulatedLaunch) -> bool:
    """Return whether gloo lets a collective meet one of another root.

    It parts the reduced tensor into two segments for each member, and sends only non-empty ones
    to the root.
    """
    if launch.stream:
        return False
    return launch.operation == "broadcast" or (launch.operation == "reduce" and _is_small(launch))


def _is_small(launch: SimulatedLaunch) -> bool:
    """Return whether a reduction may have empty segments."""
    return sum(len(each.data or b"") for each in launch.blobs) < 2 * launch.size * _LARGEST


def _free(launch: SimulatedLaunch, meeting: _Meeting) -> set[int]:
    """Return the members that no longer wait, now that one more has entered."""
    is_full = len(meeting.entered) - len(meeting.failed) == meeting.size
    match launch.operation:
        case "broadcast":
            return _free_of_broadcast(launch.member, meeting)
        case "reduce" if not is_full and (launch.stream or _is_small(launch)):
            return {each for each in meeting.waiting if each != meeting.entered[each].root}
        case "gather" | "scatter" if not is_full:
            has_root = meeting.root in meeting.entered
            return {each for each in meeting.waiting if each != meeting.root and has_root}
    return set(meeting.waiting) if is_full else set()


def _free_of_broadcast(member: int, meeting: _Meeting) -> set[int]:
    """Return the members of a broadcast that have the data and no longer send it."""
    touched = {member}
    parent = _parent(member, meeting)
    if parent is None or (parent in meeting.reached and member in _children(parent, meeting)):
        ahead, source = [member], member if parent is None else meeting.reached[parent]
        while ahead:
            each = ahead.pop()
            meeting.reached[each] = source
            touched.add(each)
            ahead += [child for child in _children(each, meeting) if _takes(child, each, meeting)]
    if parent is not None:
        touched.add(parent)
    return {
        each
        for each in touched & meeting.waiting & meeting.reached.keys()
        if all(_takes(child, each, meeting) for child in _children(each, meeting))
    }


def _takes(child: int, member: int, meeting: _Meeting) -> bool:
    """Return whether a member of a broadcast has entered, and expects the data from another."""
    return child in meeting.entered and _parent(child, meeting) == member


def _parent(member: int, meeting: _Meeting) -> int | None:
    return broadcast_parent(member, meeting.entered[member].root or 0, meeting.size)


def _children(member: int, meeting: _Meeting) -> Iterator[int]:
    return broadcast_children(member, meeting.entered[member].root or 0, meeting.size)


def _needs(launch: SimulatedLaunch, member: int, meeting: _Meeting) -> bool:
    """Return whether a collective that has not ended waits for something of another member."""
    if member in meeting.entered.keys() - meeting.waiting - meeting.failed:
        return False  # it has done its part
    match launch.operation:
        case "gather" | "reduce" | "scatter":
            return launch.root in (launch.member, member)
        case "broadcast":
            root, size = launch.root or 0, meeting.size
            above = broadcast_parent(launch.member, root, size)
            while above is not None and above != member and above not in meeting.reached:
                above = broadcast_parent(above, root, size)
            return above == member or member in broadcast_children(launch.member, root, size)
    return True


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
