"""Waits of ranks with roles for each other, inferred from the kernel's tables.

Programs of several roles ask each other over sockets. A rank that has opened a connection and reads
from it waits for an answer of the other end. A rank that has accepted a connection, or listens,
only waits for the next request: it is idle, and waits for no rank. So a server and its client,
which wait at both ends of one connection, are not a deadlock. But a rank may wait for the request
of one rank alone, and that rank for something else. Then it needs that request, whichever opened
the connection, and ranks that wait for each other in a circle are a deadlock.

An event loop, and a socket of zmq to which several may send, waits for any of several ranks. If all
of these wait likewise, and for no rank but each other, none of them can go on. Where their
connections close a circle, they are a deadlock. In a star, the server may have lost a request.

A rank may wait for a child of its own. Then the waits of the child's main thread count as the
rank's. If the main thread is idle, or waits for another thread, those of the other threads count as
well; the main thread likely lacks the thing they wait for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.process import (
    Descriptor,
    Endpoint,
    KernelSnapshot,
    Process,
    Thread,
)
from pytest_multihost.core.proof.runtime_threads import is_runtime_thread
from pytest_multihost.core.proof.threads import DEAD

_SENDING = frozenset({"sendto", "sendmsg", "write", "writev", "sendfile"})
_RECEIVING = frozenset({"recvfrom", "recvmsg", "read", "readv"})
_MAX_DEPTH = 8
_ONLY_OPENED = 1
"""The bytes moved at the end that has opened a connection: its SYN counts as one."""
_CONNECTED = frozenset({"tcp", "unix"})

Link = tuple[int, int]
"""The rank that has opened a connection, or connected to an endpoint, and the other rank."""


@dataclass(frozen=True, slots=True)
class RoleWait:
    """The wait of a rank beside the operations that it has recorded.

    Attributes:
        asked: The ranks for whose answer it waits; empty if it waits for no rank.
        is_sure: Whether its main thread waits for one answer alone.
        is_idle: Whether its main thread waits for the next request.
        is_for_child: Whether its main thread waits for a child, in whose place it asks.
        child: That child, or the last one if the child waits for another; 0: none, or it waits
            for the rank in turn.
        is_endless: Whether its main thread waits for data that no living process but itself can
            send it.
        awaited: The ranks one of which is to send its next request, if its main thread waits at
            the one connection with it.
        needs_message: Whether its main thread can go on only with a message on one connection, and
            no other thread in its place. If it awaits a request, no rank waits at the other end of
            the connection for an answer.
        is_at_rest: Whether its other threads wait for requests as well, or for each other.
        serves: Whether another thread of it waits for requests.
        sent_nothing: Whether nothing was ever sent on the one connection at which it waits, so that
            no answer can have been lost.
        is_doubtful: Whether the ranks that it asks have nothing to do. Either an answer was lost,
            or none is owed: a worker may have connected to get work.
        medium: The kind of socket at which it waits: "tcp" or "unix".
        call: The system call in which a thread waits.
        target: The object of that call, for the reader.
    """

    asked: frozenset[int] = frozenset()
    is_sure: bool = False
    is_idle: bool = False
    is_for_child: bool = False
    child: int = 0
    is_endless: bool = False
    awaited: frozenset[int] = frozenset()
    needs_message: bool = False
    is_at_rest: bool = False
    serves: bool = False
    sent_nothing: bool = False
    is_doubtful: bool = False
    medium: str = ""
    call: str = ""
    target: str = ""

    @property
    def is_certain(self) -> bool:
        """Whether it waits for ranks, and no doubt is left whether these owe it anything."""
        return bool(self.asked) and not self.is_doubtful

    def operation(self, rank: Process, at_s: float) -> Operation | None:
        """Return the wait as an operation; None if it waits for no rank."""
        others = self.asked or self.awaited
        if not others or rank.rank is None:
            return None
        return Operation(
            name=self.call,
            kind="transfer",
            group=tuple(sorted({rank.rank, *others})),
            sequence=0,
            peer=min(self.asked) if self.is_sure else None,
            detail=self.target,
            since_s=at_s,
            waited_s=at_s,
            thread=rank.pid,
            source="proc",
            medium=self.medium,
        )


@dataclass(slots=True)
class _SeenThread:
    """The observed wait of one thread.

    Attributes:
        asked: The ranks whose answer it waits for.
        children: The processes of its own rank that it waits for.
        awaited: The ranks from which it waits for requests.
        is_answered: Whether one of these waits at the other end of the connection.
        is_idle: Whether it waits for requests, perhaps among other things.
        waits_for_threads: Whether it waits for a lock of its process.
        has_more: Whether something else can end its wait as well.
        is_endless: Whether no living process but its own holds the other end of a pipe or
            connection for which it waits.
        waits_for_rank: Whether it is a child's, and waits for the process of its rank.
        has_traffic: Whether anything was sent on the connections for whose answers it waits, as
            far as is known.
        links: The connections with other ranks at which it waits.
        may_be_woken: Whether something else than these, or another thread, can end its wait.
    """

    thread: Thread
    asked: set[int] = field(default_factory=set)
    children: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    is_answered: bool = False
    is_idle: bool = False
    waits_for_threads: bool = False
    has_more: bool = False
    is_endless: bool = False
    waits_for_rank: bool = False
    has_traffic: bool = False
    medium: str = ""
    links: set[Link] = field(default_factory=set)
    may_be_woken: bool = False


def role_waits(snapshot: KernelSnapshot, waiting: Collection[int] = ()) -> Mapping[int, RoleWait]:
    """Return the waits of ranks in a world with roles.

    Args:
        snapshot: A deep snapshot of the world.
        waiting: The ranks that wait in operations that they have recorded.
    """
    world = _Ends.of(snapshot)
    found = {rank: world.wait_of(process) for rank, process in snapshot.ranks.items()}
    at_rest = {rank for rank, each in found.items() if each.is_at_rest and rank not in waiting}
    return {rank: _without_those_at_rest(each, at_rest) for rank, each in found.items()}


def waits_in_circles(
    snapshot: KernelSnapshot, at_messages: Mapping[int, frozenset[Link]], sure: Collection[int]
) -> Mapping[int, RoleWait]:
    """Return the waits of ranks for any of several others that wait in a circle with them.

    Args:
        snapshot: A deep snapshot of the world.
        at_messages: The links at which a rank's main thread waits in a message socket.
        sure: Ranks whose wait is known.
    """
    parents = {each.rank for each in snapshot.processes if not (each.is_rank or each.is_dead)}
    asked = {
        rank: process
        for rank, process in snapshot.ranks.items()
        if rank not in sure and rank not in parents  # a child may send something
        if rank in at_messages or (process.main is not None and process.main.fds)
    }
    if len(asked) < 2:  # noqa: PLR2004 - a large world has thousands of sockets
        return {}
    world = _Ends.of(snapshot)
    inside = {rank: world.links(each, at_messages.get(rank)) for rank, each in asked.items()}
    while lost := {r for r, e in inside.items() if not e or any(set(x) - {*inside} for x in e)}:
        inside = {rank: each for rank, each in inside.items() if rank not in lost}
    found = {}
    for members in _joined(inside):
        links = frozenset[Link]().union(*map(inside.__getitem__, members))
        if len(links) < len(members):  # a tree
            continue
        for rank in members:
            others = {each for link in inside[rank] for each in link} - {rank}
            main = asked[rank].threads[0]
            medium = "zmq" if rank in at_messages else "tcp"
            found[rank] = RoleWait(
                frozenset(others), medium=medium, call=main.call, target=main.target
            )
    return found


def _joined(links: Mapping[int, Iterable[Link]]) -> list[set[int]]:
    """Return the sets of ranks that links join."""
    found: list[set[int]] = []
    for link in (each for its in links.values() for each in its):
        apart = [each for each in found if each.isdisjoint(link)]
        found = [*apart, {*link}.union(*(each for each in found if each not in apart))]
    return found


def _without_those_at_rest(wait: RoleWait, at_rest: Collection[int]) -> RoleWait:
    """Remove idle ranks from a wait. If its only target is idle, mark the wait as doubtful.

    A thread may only keep a connection to such a rank.
    """
    if wait.is_sure:
        return replace(wait, is_doubtful=not wait.asked.isdisjoint(at_rest))
    return replace(wait, asked=wait.asked.difference(at_rest))


@dataclass(frozen=True, slots=True)
class _Ends:
    """The processes of a world, and the holders of the ends of connections and pipes.

    Attributes:
        holders: Processes by the end of a connection that they hold.
        pipes: Processes by a pipe that they hold.
    """

    snapshot: KernelSnapshot
    processes: Mapping[int, Process]
    holders: Mapping[tuple[Endpoint, ...], set[int]]
    pipes: Mapping[str, set[int]]

    @classmethod
    def of(cls, snapshot: KernelSnapshot) -> _Ends:
        holders: defaultdict[tuple[Endpoint, ...], set[int]] = defaultdict(set)
        pipes: defaultdict[str, set[int]] = defaultdict(set)
        for process in snapshot.processes:
            for each in process.descriptors.values():
                if each.kind in _CONNECTED and each.endpoints:
                    holders[each.endpoints].add(process.pid)
                elif each.kind == "pipe":
                    pipes[each.target].add(process.pid)
        return cls(snapshot, {each.pid: each for each in snapshot.processes}, holders, pipes)

    def wait_of(self, rank: Process) -> RoleWait:
        """Return the wait of a rank."""
        process, seen = rank, self._main(rank)
        for _ in range(_MAX_DEPTH):
            if seen is None or seen.asked or not seen.children:
                break
            process = self.processes[min(seen.children)]
            seen = self._main(process)
        is_for_child = process is not rank
        is_mutual = seen is not None and seen.waits_for_rank
        child = process.pid if is_for_child and not is_mutual else 0
        if seen is None:
            return RoleWait(is_for_child=is_for_child, child=child)
        thread = seen.thread
        if seen.asked and not seen.is_idle:
            is_sure = len(seen.asked) == 1 and not seen.has_more
            asked = frozenset(seen.asked)
            call, target = thread.call, thread.target
            return RoleWait(
                asked,
                is_sure=is_sure,
                needs_message=is_sure,
                is_for_child=is_for_child,
                child=child,
                sent_nothing=is_sure and not seen.has_traffic,
                medium=seen.medium,
                call=call,
                target=target,
            )
        others = list(self._others(process))
        serves = any(each.is_idle for each in others if each)
        if not (seen.is_idle or seen.waits_for_threads):
            is_endless = seen.is_endless and not (seen.children or seen.has_more)
            return RoleWait(
                is_for_child=is_for_child, child=child, is_endless=is_endless, serves=serves
            )
        is_at_rest = all(e and not e.asked and (e.is_idle or e.waits_for_threads) for e in others)
        asking = [each for each in others if each and each.asked]
        thread = asking[0].thread if asking else thread
        awaited = frozenset(seen.awaited if seen.thread.call in _RECEIVING else ())
        is_at_rest = seen.is_idle and not seen.asked and is_at_rest
        return RoleWait(
            frozenset(seen.asked).union(*(each.asked for each in asking)),
            is_idle=seen.is_idle,
            is_for_child=is_for_child,
            child=child,
            awaited=awaited,
            needs_message=bool(awaited) and is_at_rest and not (serves or seen.is_answered),
            is_at_rest=is_at_rest,
            serves=serves,
            medium=(asking[0] if asking else seen).medium,
            call=thread.call,
            target=thread.target,
        )

    def links(
        self, process: Process, at_messages: frozenset[Link] | None = None
    ) -> frozenset[Link]:
        """Return the links at which a rank waits; none if anything else can make it go on."""
        main = self._main(process)
        seen = [main, *self._others(process)]
        if at_messages is not None and main is not None:
            seen[0] = replace(main, links={*main.links, *at_messages})
        found = frozenset[Link]()
        for each in seen:
            is_at_rest = each is not None and (each.links or each.waits_for_threads)
            if each is None or not is_at_rest or each.may_be_woken or each.children:
                return frozenset()
            found |= each.links
        return found

    def _main(self, process: Process) -> _SeenThread | None:
        """Return the wait of a process's main thread; None if it works."""
        main = process.main
        return self._seen(process, main) if main is not None and main.state == "S" else None

    def _others(self, process: Process) -> Iterator[_SeenThread | None]:
        """Yield the waits of a process's other threads; None for a thread that works."""
        for each in process.threads[1:]:
            is_own = not (each.is_exempt or is_runtime_thread(each) or _is_of_zmq(each))
            if is_own and each.state not in DEAD:
                yield self._seen(process, each) if each.state == "S" else None

    def _seen(self, process: Process, thread: Thread) -> _SeenThread:
        found = _SeenThread(thread, waits_for_threads=thread.call.startswith("futex"))
        if thread.child:
            found.children |= set(self._children(process, thread.child))
        for each in _awaited(process, thread.fds or ()):
            self._add(found, process, each)
        return found

    def _children(self, process: Process, child: int) -> Iterator[int]:
        for each in self.snapshot.processes:
            is_own = each.rank == process.rank and not each.is_rank and each is not process
            if is_own and not each.is_dead and child in (-1, each.pid):
                yield each.pid

    def _add(self, found: _SeenThread, process: Process, awaited: Descriptor) -> None:
        """Add the wait of a thread at one descriptor."""
        found.may_be_woken |= not self._is_of_world(process, awaited)
        if awaited.kind == "listen":
            found.is_idle = True
        elif awaited.kind == "pipe":
            others = self.pipes[awaited.target] - {process.pid}
            found.children |= self._own(process, others)
            found.is_endless |= self._are_dead(others)
            found.waits_for_rank |= self._has_rank(process, others)
        elif awaited.kind in _CONNECTED and awaited.where == "inside" and awaited.endpoints:
            found.medium = awaited.kind
            holders = self.holders.get(awaited.endpoints[::-1], set()) - {process.pid}
            holders = holders or ({awaited.holder} & self.processes.keys()) - {process.pid}
            ranks = {self.processes[pid].rank for pid in holders}
            found.is_endless |= self._are_dead(holders)
            if ranks == {process.rank}:
                found.waits_for_rank |= self._has_rank(process, holders)
                found.children |= self._own(process, holders)
            elif awaited.is_accepted and found.thread.call not in _SENDING:
                found.is_idle = True
                found.awaited |= {rank for rank in ranks if rank is not None}
                found.is_answered |= self._is_awaited(holders, awaited.endpoints[::-1])
            else:
                found.asked |= {rank for rank in ranks - {process.rank} if rank is not None}
                found.has_traffic |= awaited.bytes_moved != _ONLY_OPENED
            for rank in ranks - {process.rank}:
                if rank is not None and process.rank is not None:
                    is_other = awaited.is_accepted
                    found.links.add((rank, process.rank) if is_other else (process.rank, rank))
        elif awaited.kind not in ("eventfd", "unix"):
            found.has_more = True

    def _is_of_world(self, process: Process, awaited: Descriptor) -> bool:
        """Return whether only ranks can make a descriptor ready, or only its own process."""
        if awaited.kind == "pipe":
            return self.pipes[awaited.target] <= {process.pid}
        if awaited.kind == "eventfd":
            return True
        is_inside = awaited.kind in _CONNECTED and awaited.where == "inside"
        is_held = awaited.endpoints[::-1] in self.holders or awaited.holder in self.processes
        return is_inside and is_held

    def _is_awaited(self, pids: Iterable[int], ends: tuple[Endpoint, ...]) -> bool:
        """Return whether a thread of some processes waits at one end of a connection."""
        return any(
            each.endpoints == ends
            for process in map(self.processes.__getitem__, pids)
            for thread in process.threads
            for each in _awaited(process, thread.fds or ())
        )

    def _has_rank(self, process: Process, pids: Iterable[int]) -> bool:
        own = self.snapshot.ranks.get(process.rank) if process.rank is not None else None
        return own is not None and own is not process and own.pid in {*pids}

    def _are_dead(self, pids: Iterable[int]) -> bool:
        return all(self.processes[pid].is_dead for pid in pids)

    def _own(self, process: Process, pids: Iterable[int]) -> set[int]:
        """Return the living children of a process's rank among some processes."""
        found = (self.processes[pid] for pid in pids)
        return {
            each.pid
            for each in found
            if each.rank == process.rank and not each.is_rank and not each.is_dead
        }


def _is_of_zmq(thread: Thread) -> bool:
    """Return whether a thread is zmq's own: it keeps all connections, also idle ones."""
    return thread.name.startswith("ZMQbg")


def _awaited(process: Process, fds: Iterable[int]) -> Iterator[Descriptor]:
    """Yield the descriptors that can end a wait, each epoll replaced by its members."""
    todo, seen = list(fds), set[int]()
    while todo:
        fd = todo.pop()
        found = process.descriptors.get(fd)
        if fd in seen or found is None or found.is_exempt:
            continue
        seen.add(fd)
        if found.kind == "epoll":
            todo += found.watched or ()
        else:
            yield found
