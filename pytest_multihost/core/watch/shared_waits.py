"""Find the ranks that may end another rank's wait, where no recorder has seen the wait.

A rank may wait for a semaphore, a pipe or a lock that other ranks have as well. If these can be
seen, the wait is one for them: an edge of the wait-for graph. Else it is only noted. In both cases
the rank that waits is not certainly the one to blame.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.process import Descriptor, KernelSnapshot, Process, Thread
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import RankSnapshot
from pytest_multihost.core.proof.lock_holders import holders_among
from pytest_multihost.core.proof.runtime_threads import is_python, is_runtime_thread
from pytest_multihost.core.proof.system_calls import (
    CHILDREN,
    EPOLLS,
    FUTEXES,
    POLLS,
    SIGNALS,
    SLEEPS,
    SOCKETS,
    STREAMS,
    SystemCall,
)
from pytest_multihost.core.watch.kernel.shared_objects import SharedMemory

_SYSTEM_V = frozenset({"semop", "semtimedop", "msgrcv", "msgsnd"})
_QUEUES = frozenset({"mq_timedsend", "mq_timedreceive"})
_OPENING: Mapping[str, int] = {"open": 0, "openat": 1}
_WRITING = frozenset({"write", "writev"})
_READING = frozenset({"read", "readv"})
_CONNECTED = frozenset({"tcp", "unix"})
_SQLITE = re.compile(r"sqlite", re.IGNORECASE)
_READ, _WRITE, _BOTH = 0, 1, 2
_FOREIGN = 1 << 32
"""Process ids of other machines are larger; see `merged_snapshot`."""


class Peek(Protocol):
    """Reads the objects that the processes of this machine share; see `SharedObjects`."""

    def mode(self, pid: int, fd: int) -> int | None:
        """Return how a descriptor was opened."""

    def eventfd(self, pid: int, fd: int) -> int | None:
        """Return the kernel's number of an eventfd."""

    def is_fifo(self, path: str) -> bool:
        """Return whether a path is that of a named pipe."""

    def memory(self, pid: int, address: int) -> SharedMemory | None:
        """Return the memory of a futex, if processes may share it."""

    def operators(self, call: str, number: int) -> frozenset[int]:
        """Return the processes that have last used a System V semaphore or queue."""

    def lockers(self, path: str) -> frozenset[int]:
        """Return the processes that hold a lock on a file."""


@dataclass(frozen=True, slots=True)
class SharedWait:
    """The wait of a thread for an object that other ranks may provide.

    Attributes:
        what: A name for it: a system call, ``semaphore``.
        ranks: The ranks that can be seen to have it as well.
        is_sure: Whether only the one rank in `ranks` can end the wait.
        is_lock: Whether `ranks` hold the lock of a file for which the rank tries again and again.
        children: Of `ranks`, those of which only a child holds that lock, with the child.
        note: Why the rank is not certainly to blame, after its name.
    """

    what: str
    detail: str = ""
    ranks: frozenset[int] = frozenset()
    is_sure: bool = False
    is_lock: bool = False
    children: tuple[tuple[int, Child], ...] = ()
    note: str = ""


def with_shared_wait(
    seen: RankSnapshot, found: SharedWait | None, process: Process, at_s: float
) -> RankSnapshot:
    """Return a rank with the wait that other ranks may end."""
    if found is None:
        return seen
    if found.is_lock:
        held = tuple(sorted({*seen.lock_holders, *found.ranks}))
        return replace(
            seen,
            lock_holders=held,
            lock_children=(*seen.lock_children, *found.children),
            tries_lock=True,
            owed=found.note,
        )
    if not found.ranks:
        return replace(seen, owed=found.note)
    operation = Operation(
        name=found.what,
        kind="transfer",
        group=tuple(sorted({seen.rank, *found.ranks})),
        sequence=0,
        has_members=len(found.ranks) == 1,
        peer=min(found.ranks) if found.is_sure else None,
        detail=found.detail,
        since_s=at_s,
        waited_s=at_s,
        thread=process.pid,
        source="proc",
    )
    return replace(seen, operations=(*seen.operations, operation), owed=found.note)


def shared_waits(
    kernel: KernelSnapshot,
    peek: Peek,
    *,
    asked: Collection[int],
    names: Names,
    are_roles: bool = False,
) -> Mapping[int, SharedWait]:
    """Return, by rank, the waits that other ranks may end.

    Args:
        kernel: A deep snapshot of the world.
        asked: The ranks on this machine that are in no known operation.
        are_roles: Whether waits at sockets and pipes are known already.
    """
    world = _SharedWaits(kernel, peek, names, are_roles=are_roles)
    found = ((rank, world.wait_of(rank)) for rank in asked if rank in kernel.ranks)
    return {rank: each for rank, each in found if each is not None}


@dataclass(frozen=True, slots=True)
class _SharedWaits:
    kernel: KernelSnapshot
    peek: Peek
    names: Names
    are_roles: bool = False

    def wait_of(self, rank: int) -> SharedWait | None:
        """Return the wait of a rank's main thread; of another thread only a note."""
        process = self.kernel.ranks[rank]
        main = process.main
        if main is None or main.state != "S":
            return None
        if (found := self._wait(process, main)) is not None:
            return found
        for each, thread in self._others(process):
            if thread.call in SIGNALS:
                continue
            if (found := self._wait(each, thread)) is not None:
                return SharedWait(found.what, note=found.note)
        return None

    def _others(self, rank: Process) -> Iterator[tuple[Process, Thread]]:
        """Yield the threads for which the main one may wait, and those of children."""
        main = rank.main.call if rank.main is not None else ""
        for thread in rank.threads[1:] if main in FUTEXES else ():
            if is_python(thread) and not thread.is_exempt and not is_runtime_thread(thread):
                yield rank, thread
        is_for_children = main in CHILDREN | STREAMS | POLLS | EPOLLS | SOCKETS | FUTEXES
        for process in self.kernel.processes if is_for_children else ():
            if process.rank == rank.rank and not process.is_rank and process.main is not None:
                yield process, process.main

    def _wait(self, process: Process, thread: Thread) -> SharedWait | None:
        call = thread.call
        if thread.state != "S" or process.pid >= _FOREIGN:
            return None
        if call in FUTEXES:
            return self._futex(process, thread)
        if call in _SYSTEM_V and thread.args:
            return self._system_v(process, thread)
        if call in SIGNALS or call in _QUEUES:
            what = "a signal" if call in SIGNALS else "a message queue"
            return SharedWait(call, note=f"waits for {what}, which any rank may send to")
        if call in _OPENING and self.peek.is_fifo(thread.target):
            note = f"opens the named pipe {thread.target}, and waits for its other end"
            return SharedWait(call, note=f"{note}, which any rank may open")
        if call in SLEEPS and _SQLITE.search(thread.caller):
            return self._database(process)
        is_of_descriptors = call in STREAMS | POLLS | EPOLLS | SOCKETS
        return self._descriptors(process, thread) if is_of_descriptors else None

    def _ranks(self, pids: Collection[int], own: Process) -> frozenset[int]:
        """Return the other ranks to which living processes belong."""
        found = (e.rank for e in self.kernel.processes if e.pid in pids and not e.is_dead)
        return frozenset(e for e in found if e is not None and e != own.rank)

    def _futex(self, process: Process, thread: Thread) -> SharedWait | None:
        if SystemCall(thread.call, thread.args).is_private_futex or not thread.args:
            return None
        memory = self.peek.memory(process.pid, thread.args[0])
        if memory is None:
            return None
        owner = next((each for each in self.kernel.processes if _has(each, memory.owner)), None)
        if memory.owner and owner is None:
            return None  # its holder is gone: no thread releases it
        if owner is not None:
            ranks = self._ranks({owner.pid}, process)
            note = f"waits for a mutex in shared memory that {self.names.of(ranks)} holds"
            return SharedWait(memory.name, "", ranks, is_sure=True, note=note) if ranks else None
        ranks = self._ranks(memory.sharers, process)
        if ranks:
            note = f"waits for a {memory.name}, which {self.names.of(ranks)} can also release"
            return SharedWait(memory.name, "", ranks, note=note)
        if memory.can_be_opened:
            note = f"waits for a {memory.name}, which any rank may open and release"
            return SharedWait(memory.name, note=note)
        return None

    def _system_v(self, process: Process, thread: Thread) -> SharedWait:
        what = "semaphore" if thread.call.startswith("sem") else "queue"
        number = thread.args[0] & 0xFFFFFFFF
        ranks = self._ranks(self.peek.operators(thread.call, number), process)
        whose = f", which {self.names.of(ranks)} has used" if ranks else ", which any rank may use"
        note = f"waits for System V {what} {number}{whose}"
        return SharedWait(thread.call, f"{what} {number}", ranks, note=note)

    def _database(self, process: Process) -> SharedWait | None:
        """Return the wait of a rank in which SQLite tries again to lock a file."""
        for each in process.descriptors.values():
            if each.kind == "file" and each.target.startswith("/"):
                lockers = holders_among(self.peek.lockers(each.target), self.kernel)
                others = lockers.without(process.rank)
                ranks = frozenset(others.ranks)
                if ranks:
                    note = f"tries again and again to lock the database {each.target}"
                    note = f"{note}, of which {self.names.of(ranks)} holds a lock"
                    return SharedWait(
                        "", each.target, ranks, is_lock=True, children=others.children, note=note
                    )
        return None

    def _descriptors(self, process: Process, thread: Thread) -> SharedWait | None:
        awaited = _awaited(process, thread.fds or ())
        if self.are_roles:
            awaited = [each for each in awaited if each.kind in {"fifo", "eventfd"}]
        ranks, notes, is_sure, others = frozenset[int](), list[str](), False, 0
        for each in awaited:
            end = self._other_end(process, thread, each)
            if end is None:
                others += 1
                continue
            ranks |= end.ranks
            notes += [end.note] if end.note else []
            is_sure = end.is_sure and len(awaited) == 1
        if not notes:
            return None
        # If something else may end the wait as well, no rank is named.
        named = frozenset[int]() if others else ranks
        detail = awaited[0].target if len(awaited) == 1 else ""
        return SharedWait(thread.call, detail, named, is_sure=is_sure, note=notes[0])

    def _other_end(self, process: Process, thread: Thread, each: Descriptor) -> SharedWait | None:
        """Return which ranks have the other end of a descriptor; None if there is no such end."""
        if each.is_exempt:
            return None
        if each.kind in {"pipe", "fifo"}:
            return self._pipe(process, thread, each)
        if each.kind == "eventfd":
            return self._eventfd(process, each)
        if each.kind in _CONNECTED and each.endpoints:
            pids = {
                other.pid
                for other in self.kernel.processes
                for theirs in other.descriptors.values()
                if theirs.endpoints == each.endpoints[::-1]
            }
            ranks = self._ranks(pids, process)
            note = f"waits for {each.target}, whose other end {self.names.of(ranks)} has"
            is_inherited = len(pids) > 1  # a single holder may leave it to another thread
            named = ranks if is_inherited else frozenset[int]()
            return SharedWait(thread.call, each.target, named, note=note if ranks else "")
        return None

    def _pipe(self, process: Process, thread: Thread, each: Descriptor) -> SharedWait:
        mine = self.peek.mode(process.pid, each.fd)
        if thread.call in _READING or (thread.call not in _WRITING and mine == _READ):
            wanted = {_WRITE, _BOTH}
        elif thread.call in _WRITING or mine == _WRITE:
            wanted = {_READ, _BOTH}
        else:
            wanted = {_READ, _WRITE, _BOTH}
        pids = {
            other.pid
            for other in self.kernel.processes
            if other.pid < _FOREIGN
            for fd, theirs in other.descriptors.items()
            if (theirs.kind, theirs.target) == (each.kind, each.target)
            and self.peek.mode(other.pid, fd) in wanted
        }
        ranks = self._ranks(pids, process)
        is_own = any(e.pid in pids and e.rank == process.rank for e in self.kernel.processes)
        if ranks:
            note = f"waits for {each.target}, whose other end {self.names.of(ranks)} has"
            is_sure = len(ranks) == 1 and not is_own and each.kind == "pipe"
            return SharedWait(thread.call, each.target, ranks, is_sure=is_sure, note=note)
        note = f"waits for the named pipe {each.target}, which any rank may open"
        return SharedWait(thread.call, each.target, note=note if each.kind == "fifo" else "")

    def _eventfd(self, process: Process, each: Descriptor) -> SharedWait:
        number = self.peek.eventfd(process.pid, each.fd)
        pids = {
            other.pid
            for other in self.kernel.processes
            if other.rank != process.rank and other.pid < _FOREIGN and number is not None
            for fd, theirs in other.descriptors.items()
            if theirs.kind == "eventfd" and self.peek.eventfd(other.pid, fd) == number
        }
        ranks = self._ranks(pids, process)
        note = f"waits for an eventfd that {self.names.of(ranks)} can write to" if ranks else ""
        return SharedWait("eventfd", "", ranks, note=note)


def _has(process: Process, thread: int) -> bool:
    return thread > 0 and any(
        e.tid == thread and e.state not in {"X", "Z"} for e in process.threads
    )


def _awaited(process: Process, fds: Sequence[int]) -> list[Descriptor]:
    """Return the descriptors of a wait, each epoll replaced by the descriptors that it watches."""
    found, todo, done = list[Descriptor](), list(fds), set[int]()
    while todo:
        fd = todo.pop(0)
        each = process.descriptors.get(fd)
        if fd in done or each is None:
            continue
        done.add(fd)
        if each.kind == "epoll":
            todo += each.watched or ()
        else:
            found.append(each)
    return found
