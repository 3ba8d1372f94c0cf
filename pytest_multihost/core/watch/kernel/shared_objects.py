"""Read which processes share an object by which one of them may end a wait of another.

These are pipes, eventfds, memory with semaphores or mutexes in it, System V semaphores and queues,
and locks of files. They are read once, for a world that is judged, and only for its waits.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import PurePath

from pytest_multihost.core.model.stack import PolledFile
from pytest_multihost.core.watch.kernel.descriptors import open_mode
from pytest_multihost.core.watch.kernel.foreign_processes import eventfd_id
from pytest_multihost.core.watch.kernel.futexes import can_be_opened
from pytest_multihost.core.watch.kernel.memory import Memory
from pytest_multihost.core.watch.kernel.proc_files import (
    entries,
    file_mode,
    link,
    read,
    read_stat,
)

_MUTEX = struct.Struct("=iIiIi")
"""The begin of glibc's pthread_mutex_t: lock, count, owner, users, kind."""
_OF_PROCESSES, _KINDS = 128, 512
"""The bit of a mutex's kind that processes share it (PTHREAD_MUTEX_PSHARED_BIT), and more than any
kind has."""
_GETPID = 11  # of semctl(2)
_SEMAPHORES = re.compile(r"^\s*\S+\s+(\d+)\s+\d+\s+(\d+)", re.MULTILINE)
_QUEUES = re.compile(r"^\s*\S+\s+(\d+)\s+\d+\s+\d+\s+\d+\s+(\d+)\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The memory in which the futex of a wait lies, if processes may share it.

    Attributes:
        sharers: The processes that have it, without the waiting one.
        owner: The thread that holds the mutex there; 0: it is not a mutex, or that is unknown.
        can_be_opened: Whether another process may open it by a name.
    """

    name: str
    sharers: tuple[int, ...] = ()
    owner: int = 0
    can_be_opened: bool = False


@dataclass(frozen=True, slots=True)
class SharedObjects:
    """Reads the objects that the processes of this machine share."""

    pids: Collection[int]

    def mode(self, pid: int, fd: int) -> int | None:
        """Return how a descriptor was opened: 0 to read, 1 to write, 2 for both; None: unknown."""
        return open_mode(pid, fd)

    def eventfd(self, pid: int, fd: int) -> int | None:
        """Return the kernel's number of an eventfd; None if unknown."""
        return eventfd_id(pid, fd)

    def is_fifo(self, path: str) -> bool:
        """Return whether a path is that of a named pipe."""
        mode = file_mode(path)
        return mode is not None and stat.S_ISFIFO(mode)

    def memory(self, pid: int, address: int) -> SharedMemory | None:
        """Return the memory of a process's futex, if other processes may share it."""
        with closing(Memory(pid)) as memory:
            found = memory.mapping(address)
            if found is None or not found.is_shared:
                return None
            data = memory.read(address, _MUTEX.size) or bytes(_MUTEX.size)
            _, _, owner, _, kind = _MUTEX.unpack(data)
            is_mutex = owner > 0 and bool(kind & _OF_PROCESSES) and 0 < kind < _KINDS
            file = f" {found.file} ".encode()
            sharers = (
                e for e in self.pids if e != pid and file in (read(f"/proc/{e}/maps") or b"")
            )
            name = PurePath(found.path.removesuffix(" (deleted)")).name
            what = "semaphore" if name.startswith("sem.") else "lock in shared memory"
            return SharedMemory(
                "pthread_mutex_lock" if is_mutex else what,
                tuple(sharers),
                owner if is_mutex else 0,
                can_be_opened(found, pid),
            )

    def operators(self, call: str, number: int) -> frozenset[int]:
        """Return the processes that have last used a System V semaphore or queue."""
        if call.startswith("sem"):
            found = _SEMAPHORES.findall((read("/proc/sysvipc/sem") or b"").decode())
            counts = {int(each): int(count) for each, count in found}
            semctl = ctypes.CDLL(None).semctl
            last = (semctl(number, each, _GETPID) for each in range(counts.get(number, 0)))
            return frozenset(each for each in last if each > 0)
        queues = _QUEUES.findall((read("/proc/sysvipc/msg") or b"").decode())
        used = (int(pid) for each, *pids in queues if int(each) == number for pid in pids)
        return frozenset(each for each in used if each > 0)

    def lockers(self, path: str) -> frozenset[int]:
        """Return the processes that hold a lock on a file which keeps others from writing it."""
        with suppress(OSError):
            found = os.stat(path)  # noqa: PTH116 - as for PTH115
            device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
            lines = [line.split() for line in (read("/proc/locks") or b"").decode().splitlines()]
            held = (each for each in lines if each[1] in {"POSIX", "OFDLCK"} and each[5] == device)
            return frozenset(int(each[4]) for each in held)
        return frozenset()


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of a file, and whether a lock of it is for one process only."""

    is_alone: bool
    start: int
    end: float

    def excludes(self, other: _Span) -> bool:
        """Return whether two processes cannot hold both locks at once."""
        are_apart = self.start >= other.end or other.start >= self.end
        return (self.is_alone or other.is_alone) and not are_apart


def span(*, is_alone: bool, start: int, length: int) -> _Span:
    """Return a part of a file; a length of 0 reaches to its end."""
    return _Span(is_alone, start, start + length if length else float("inf"))


def holders_by_descriptors(pid: int, fd: int, address: int) -> tuple[int, ...]:
    """Return the processes that hold a lock for which another waits, by their descriptors.

    A lock of flock(2) or of F_OFD_SETLK (fcntl(2)) belongs to an open file, which several processes
    may have, and not to a process. So /proc/locks names the process that took it, or none. fdinfo
    has a line for each lock of a descriptor.

    Args:
        address: Of the ``struct flock`` with the lock that it waits for; 0: flock(2) waits.
    """
    file = link(f"/proc/{pid}/fd/{fd}")
    with closing(Memory(pid)) as memory:
        data = memory.read(address, 24) if address else None
    kinds = frozenset({"OFDLCK", "POSIX"} if address else {"FLOCK"})
    wanted = span(is_alone=True, start=0, length=0)
    if data is not None:
        kind, whence, start, length = struct.unpack("=hhxxxxqq", data)
        if whence == os.SEEK_SET:
            wanted = span(is_alone=kind == fcntl.F_WRLCK, start=start, length=length)
    pids = entries("/proc") or () if file else ()
    found = (each for each in pids if _holds(each, file, wanted, kinds))
    return tuple(found) or (0,)


def _holds(pid: int, file: str, wanted: _Span, kinds: Collection[str]) -> bool:
    for fd in entries(f"/proc/{pid}/fd") or ():
        if link(f"/proc/{pid}/fd/{fd}") == file:
            info = (read(f"/proc/{pid}/fdinfo/{fd}") or b"").decode()
            if any(each.excludes(wanted) for each in locks_in(info, kinds)):
                return True
    return False


def locks_in(info: str, kinds: Collection[str]) -> Iterator[_Span]:
    """Yield the locks of an open file: ``lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:12 0 EOF``."""
    for line in info.splitlines():
        words = line.split()
        if words[:1] == ["lock:"] and not {*kinds}.isdisjoint(words):
            start, end = words[-2:]
            yield _Span(
                is_alone="WRITE" in words,
                start=int(start),
                end=float("inf") if end == "EOF" else int(end) + 1,
            )


_MAX_DEPTH = 8
_ID_BYTES = 64
"""A file with a process's id is not longer."""


def with_holders(found: PolledFile) -> PolledFile:
    """Return a file for which a process polls, with the processes that have it open, and maker."""
    path = os.path.realpath(found.path)
    pids = [
        pid
        for pid in entries("/proc") or ()
        if any(link(f"/proc/{pid}/fd/{fd}") == path for fd in entries(f"/proc/{pid}/fd") or ())
    ]
    made_s, author = None, 0
    with suppress(OSError):
        about = os.stat(path)  # noqa: PTH116 - as for PTH115
        made_s = round(max(0.0, time.time() - about.st_mtime), 1)
        if stat.S_ISREG(about.st_mode) and 0 < about.st_size <= _ID_BYTES:
            text = (read(path) or b"").decode("ascii", "replace").split()
            author = int(text[0]) if text and re.fullmatch(r"[0-9]{1,10}", text[0]) else 0
    return replace(
        found,
        holders=tuple(dict.fromkeys(each for pid in pids for each in _with_ancestors(pid))),
        made_s=made_s,
        author=author,
        is_alive=bool(author) and read_stat(f"/proc/{author}") is not None,
    )


def _with_ancestors(pid: int) -> Iterator[int]:
    each = pid
    for _ in range(_MAX_DEPTH):
        about = read_stat(f"/proc/{each}") if each > 1 else None
        if about is None:
            return
        yield each
        each = about.parent
