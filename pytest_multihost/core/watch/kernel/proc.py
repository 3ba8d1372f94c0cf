"""Snapshots of a world's processes through /proc, without affecting them.

A shallow snapshot reads the ranks' main threads and is cheap enough for every quarter of a second.
A deep one reads every thread and descriptor of the ranks and of their child processes; it is for a
world without progress.

Any read may fail at any time: the process or thread may end between two reads, and another may get
its id (`_is_same`). A thread that has gone is omitted; what cannot be read of a live thread is
marked unknown, never omitted.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_multihost.core.model.process import NEVER, KernelSnapshot, Process, Thread, Where
from pytest_multihost.core.proof.threads import (
    DEAD,
    FUTEXES,
    SOCKETS,
    STREAMS,
    SystemCall,
    is_interpreter,
    read_stack,
)
from pytest_multihost.core.watch.kernel import proc_files
from pytest_multihost.core.watch.kernel.descriptors import Tables
from pytest_multihost.core.watch.kernel.elf import symbol_table
from pytest_multihost.core.watch.kernel.membership import (
    HarnessProcesses,
    find_family,
    with_eventfd_holders,
)
from pytest_multihost.core.watch.kernel.proc_files import Memory, MemoryMapping, ReturnAddresses
from pytest_multihost.core.watch.kernel.time_source import MACHINE_TIME, TimeSource

_TICK_S = 0.02
_PIDFD_GETFD = 438

_NUMBERED = "/SYSV"
"""System V memory is no file and always called removed; any process of its user can attach it."""

_RANDOM_NAME = re.compile(r"sem\.(mp|loky-[0-9]+)-[a-z0-9_]{8}")
"""Semaphores of multiprocessing and loky, which have their names for spawned children."""

_ANONYMOUS = "/dev/zero (deleted)"


class KernelReader(Protocol):
    """Takes snapshots of the processes of one world, wherever they are."""

    def shallow_snapshot(self) -> KernelSnapshot:
        """Read the main threads of all ranks."""

    def deep_snapshot(self) -> KernelSnapshot:
        """Read all threads and descriptors of the ranks and of their descendants."""


@dataclass(slots=True)
class ProcReader:
    """Takes snapshots of the processes of one world.

    Attributes:
        ranks: Process id of each rank.
        harness: What belongs to the harness.
        time: What tells their time.
    """

    ranks: Mapping[int, int]
    harness: HarnessProcesses = field(default_factory=HarnessProcesses)
    time: TimeSource = MACHINE_TIME
    _born: dict[int, float] = field(init=False)
    _waits: dict[int, tuple[tuple[object, ...] | None, float, float]] = field(default_factory=dict)
    """Of each thread its wait's key, the earliest time the wait can have begun, and when the
    thread was last seen."""

    def __post_init__(self) -> None:
        found = {pid: proc_files.read_stat(f"/proc/{pid}") for pid in self.ranks.values()}
        self._born = {pid: stat.started_s if stat else -1.0 for pid, stat in found.items()}

    def shallow_snapshot(self) -> KernelSnapshot:
        """Read the main threads of all ranks."""
        at_s, ends = self.time.now(), self.time.ends()
        processes = []
        for rank, pid in sorted(self.ranks.items()):
            stat = proc_files.read_stat(f"/proc/{pid}")
            if stat is None or not self._is_same(pid, stat):
                processes.append(Process(pid=pid, rank=rank))
                continue
            reader = ProcessReader(
                pid, at_s, self._since, self.harness, ends=ends, own=self.time.threads
            )
            with closing(reader.memory):
                thread = reader.thread(pid)
            threads = (thread,) if thread else ()
            processes.append(Process(pid=pid, rank=rank, name=stat.name, threads=threads))
        return KernelSnapshot(at_s=at_s, processes=tuple(processes))

    def deep_snapshot(self) -> KernelSnapshot:
        """Read all threads and descriptors of the ranks and of their descendants."""
        at_s, ends = self.time.now(), self.time.ends()
        found_stats = (
            (pid, proc_files.read_stat(f"/proc/{pid}")) for pid in proc_files.entries("/proc") or ()
        )
        stats = {pid: stat for pid, stat in found_stats if stat is not None}
        family = find_family(stats, self.ranks, self._is_same, self.harness)
        links: dict[int, dict[int, str]] = {}
        unread: set[int] = set()
        for pid in family:
            fds = proc_files.entries(f"/proc/{pid}/fd")
            links[pid] = {fd: proc_files.link(f"/proc/{pid}/fd/{fd}") for fd in fds or ()}
            if fds is None:
                unread.add(pid)
        names = {pid: stat.name for pid, stat in stats.items()}
        called = {
            pid: f"process {names.get(pid, '')} {pid}" if rank is None else f"rank {rank}"
            for pid, (rank, _) in family.items()
        }
        parents = {stats[pid].parent for pid in self.ranks.values() if pid in stats}
        servers = {
            pid
            for pid in parents
            if pid in self.harness.servers
            or (pid in stats and stats[pid].parent in self.harness.controllers)
        }
        harness = replace(self.harness, servers=frozenset(servers))
        tables = Tables(links, names, called, harness)
        # Only if somebody waits for one: reading /proc/locks waits for all processors, for 5 ms.
        locks = functools.cache(proc_files.holders_by_waiter)
        processes = []
        for pid, (rank, is_rank) in family.items():
            if is_rank and not (pid in stats and self._is_same(pid, stats[pid])):
                processes.append(Process(pid=pid, rank=rank))
                continue
            reader = ProcessReader(
                pid,
                at_s,
                self._since,
                self.harness,
                tables,
                locks,
                ends=ends,
                own=self.time.threads,
            )
            with closing(reader.memory):
                found = reader.process(rank, names.get(pid, ""), tables, is_rank=is_rank)
            if pid in unread:
                found = replace(found, unread=(*found.unread, "descriptors"))
            processes.append(found)
        alive = {thread.tid for each in processes for thread in each.threads}
        self._waits = {tid: wait for tid, wait in self._waits.items() if tid in alive}
        return KernelSnapshot(at_s=at_s, processes=tuple(processes), is_deep=True)

    def _is_same(self, pid: int, stat: proc_files.Stat) -> bool:
        """Return whether a process id has not been given to another process."""
        return abs(self._born[pid] - stat.started_s) < _TICK_S

    def _since(self, thread: Thread, at_s: float) -> tuple[float, bool]:
        """Return the earliest time at which a thread's wait can have begun, and if it is new.

        The kernel does not say when a wait began. The earliest possible time makes a relative
        timeout end too early, never too late.
        """
        key, since_s, seen_s = thread.wait_key, thread.started_s, thread.started_s
        last_key, last_since_s, last_seen_s = self._waits.get(thread.tid, (None, since_s, seen_s))
        is_new = last_key != key
        since_s = max(since_s, last_seen_s) if is_new else last_since_s
        self._waits[thread.tid] = key, since_s, at_s
        return since_s, is_new


# One process


@dataclass
class ProcessReader:
    """Reads one process during one snapshot; close its memory in the end.

    Attributes:
        pid: Its id.
        at_s: When the snapshot began.
        since: Returns since when a thread can be in its wait at the earliest, and whether the wait
            is new since the snapshot before.
        harness: What belongs to the harness.
        tables: What is needed to say where descriptors lead; None in a shallow snapshot.
        locks: Returns the holders for each process that waits for a file lock; None if unknown.
        ends: When timed waits end, by thread, where the arguments of their system calls do not
            tell: see `TimeSource`.
        own: Names of threads that only serve the world's time source.
        memory: The process's memory.
        returns: Finds return addresses in it.
    """

    pid: int
    at_s: float
    since: Callable[[Thread, float], tuple[float, bool]]
    harness: HarnessProcesses
    tables: Tables | None = None
    locks: Callable[[], Mapping[int, tuple[int, ...]] | None] = lambda: None
    ends: Mapping[int, float] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    memory: Memory = field(init=False)
    returns: ReturnAddresses = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Memory(self.pid)
        self.returns = ReturnAddresses(self.memory)

    def process(self, rank: int | None, name: str, tables: Tables, *, is_rank: bool) -> Process:
        """Return everything about the process."""
        tids = proc_files.entries(f"/proc/{self.pid}/task") or []
        tids.sort(key=lambda tid: tid != self.pid)
        threads = tuple(filter(None, map(self.thread, tids)))
        status = proc_files.read_status(f"/proc/{self.pid}")
        timers = proc_files.read(f"/proc/{self.pid}/timers")
        # Signals that wait to be delivered, to the thread or the process.
        pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
        found = Process(
            pid=self.pid,
            rank=rank,
            is_rank=is_rank,
            name=name,
            threads=threads,
            descriptors={fd: tables.describe(self.pid, fd) for fd in tables.links[self.pid]},
            caught=int(status.get("SigCgt", "0"), 16),
            pending=pending & ~int(status.get("SigBlk", "0"), 16),
            timers=None if timers is None else timers.count(b"ID:"),
            tracer=int(status.get("TracerPid", "0")),
            unread=(*(("signals",) if threads and not status else ()), *tables.unread),
        )
        return with_eventfd_holders(found, tables.foreign, tables.names)

    def thread(self, tid: int) -> Thread | None:
        """Return what a thread does; None when it is gone."""
        directory = f"/proc/{self.pid}/task/{tid}"
        stat, runs = proc_files.read_stat(directory), proc_files.read_runs(directory)
        if stat is None:
            return None
        if stat.state in DEAD:
            return Thread(tid=tid, name=stat.name, state=stat.state, started_s=stat.started_s)
        call, pointer = proc_files.read_call(directory)
        cpu_ns, count = runs or (stat.cpu_ns, -1)
        found = Thread(
            tid=tid,
            name=stat.name,
            state=stat.state,
            call=call.name,
            args=call.args,
            pointer=pointer,
            cpu_ns=cpu_ns or stat.cpu_ns,
            runs=count,
            started_s=stat.started_s,
        )
        since_s, is_new = self.since(found, self.at_s)
        if call.name in {"", "running"}:
            wchan = (proc_files.read(f"{directory}/wchan", is_line=True) or b"").decode()
            return self._with_code(replace(found, wchan=wchan, fds=None))
        found = self._with_wait(found, call, since_s)
        # The stack costs most. Who waits in the same futex as before has the same.
        is_as_before = found.ends_s == NEVER and not is_new and call.name in FUTEXES
        return found if is_as_before else self._with_code(found)

    def _with_wait(self, thread: Thread, call: SystemCall, since_s: float) -> Thread:
        fd, child = call.descriptor, call.child
        ends_s = self.ends.get(thread.tid) or self._ends_s(call, since_s)
        target = ""
        if fd is not None and self.tables is not None:
            target = self.tables.links[self.pid].get(fd, "")
        elif fd is not None:
            target = proc_files.link(f"/proc/{self.pid}/fd/{fd}")
        if fd is not None and target.startswith("socket:") and call.name in SOCKETS | STREAMS:
            timeout_s = _socket_timeout_s(self.pid, fd)
            if timeout_s is None or ends_s is None:
                ends_s = None
            else:
                ends_s = min(ends_s, since_s + timeout_s)
        if call.path_address is not None:
            target = self.memory.text(call.path_address)
        elif child > 0:
            stat = proc_files.read_stat(f"/proc/{child}")
            target = f"child {child}: {stat.name}" if stat else f"child {child}"
        is_deep = self.tables is not None
        return replace(
            thread,
            ends_s=ends_s,
            fds=(fd,) if fd is not None else self._polled(call),
            target=target,
            child=child,
            futex_scope=who_wakes(call, self.memory, self.tables),
            waits_for_gil=is_deep and waits_for_gil(call, self.memory, ends_s),
            holders=(self.locks() or {}).get(self.pid) if call.is_file_lock else None,
            is_exempt=thread.name in self.own or (bool(target) and self.harness.is_path(target)),
        )

    def _ends_s(self, call: SystemCall, since_s: float) -> float | None:
        """Return when a timeout in the call's arguments ends it, on the monotonic clock."""
        timeout = call.timeout
        if timeout.kind in {"none", "unknown"}:
            return NEVER if timeout.kind == "none" else None
        if timeout.milliseconds is not None:
            return since_s + timeout.milliseconds / 1000
        seconds = self.memory.seconds(timeout.address, timeout.unit)
        if seconds is None:
            return None
        if timeout.kind == "realtime":
            return seconds - (time.time() - time.monotonic())
        return seconds + (since_s if timeout.kind == "relative" else 0.0)

    def _polled(self, call: SystemCall) -> tuple[int, ...] | None:
        """Return the descriptors that poll(2) or select(2) wait for; None if unreadable."""
        found: set[int] = set()
        if call.name in {"poll", "ppoll"}:
            address, count = call.args[:2]
            data = self.memory.read(address, 8 * count) if count else b""
            if data is None:
                return None
            found = {fd for fd, _, _ in struct.iter_unpack("=iHH", data) if fd >= 0}
        elif call.name in {"select", "pselect6"}:
            count = call.args[0] & 0xFFFFFFFF
            for address in filter(None, call.args[1:4]):
                data = self.memory.read(address, (count + 63) // 64 * 8) if count else b""
                if data is None:
                    return None
                bits = int.from_bytes(data, "little")
                found |= {fd for fd in range(count) if bits >> fd & 1}
        return tuple(sorted(found))

    def _with_code(self, thread: Thread) -> Thread:
        """Return a thread with whose code waits; of main threads that does not matter."""
        if self.tables is None or thread.tid == self.pid or not thread.pointer:
            return thread
        returns = self.returns.of_stack(thread.pointer)
        if returns is None:
            return thread
        is_leaf = self.returns.is_at(thread.pointer)
        code, function = read_stack(
            returns, lambda path, offset: symbol_table(path).name_at_offset(offset), is_leaf=is_leaf
        )
        return replace(thread, code=code, function=function)


def _socket_timeout_s(pid: int, fd: int) -> float | None:
    """Return the longest a blocking call on another process's socket takes.

    No file in /proc has SO_RCVTIMEO and SO_SNDTIMEO (socket(7)), so they are read from the socket
    through a duplicated descriptor (pidfd_getfd(2)), which is closed at once.

    Returns:
        The shorter of both, NEVER without any; None if they cannot be read.
    """
    try:
        process = os.pidfd_open(pid)
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, fd, 0)
        os.close(process)
        with socket.socket(fileno=copy) as held:  # of -1 it makes an error
            options = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
            data = [held.getsockopt(socket.SOL_SOCKET, option, 16) for option in options]
    except (OSError, ValueError):
        return None
    seconds = [whole + part / 1e6 for whole, part in (struct.unpack("=qq", each) for each in data)]
    return min(filter(None, seconds), default=NEVER)


# Words in memory that threads wait for (futex(2))


def who_wakes(call: SystemCall, memory: Memory, tables: Tables | None) -> Where:
    """Return where the wakers of a waiting thread may be, from the memory page of its futex.

    Args:
        call: What it waits in; unless this is a futex, only its own process can wake it.
        memory: The memory of its process.
        tables: All processes; None in a shallow snapshot.
    """
    if call.name not in FUTEXES or call.is_private_futex:
        return "inside"
    # futex_waitv waits for several words, which are not read: it is not used in practice.
    mapping = None if call.name == "futex_waitv" else memory.mapping(call.args[0])
    if mapping is None or tables is None:
        return "unknown"
    if not mapping.is_shared:
        return "inside"
    if can_be_opened(mapping, memory.pid):
        return "unknown"
    return "outside" if tables.foreign.has(mapping) else "inside"


def can_be_opened(mapping: MemoryMapping, pid: int) -> bool:
    """Return whether a process that does not have a file yet may open it: by name, or by number.

    Random names cannot be guessed; the process that made one passes it only to its children.

    glibc makes a semaphore under one name, gives it its own and removes the first, by which the
    kernel goes on calling it (https://sourceware.org/git/glibc.git, sysdeps/pthread/sem_open.c). So
    the other names of a removed file are looked up in its directory.
    """
    directory, name = os.path.split(mapping.path)
    if mapping.path.startswith(_NUMBERED):
        return True
    if not mapping.is_removed:
        return not _RANDOM_NAME.fullmatch(name)
    if directory == "/" or mapping.path == _ANONYMOUS:  # no file, but what the kernel calls one
        return False
    try:
        with os.scandir(f"/proc/{pid}/root{directory}") as found:
            names = [each.name for each in found if each.inode() == mapping.inode]
    except FileNotFoundError:
        return False
    except OSError:
        return True  # may be any
    return not all(map(_RANDOM_NAME.fullmatch, names))


def waits_for_gil(call: SystemCall, memory: Memory, ends_s: float | None) -> bool:
    """Return whether a thread waits for its turn to run Python.

    It asks for the GIL every five milliseconds
    (https://docs.python.org/3/library/sys.html#sys.setswitchinterval), and the word that it waits
    for lies in the interpreter's data; those of locks and queues lie on the heap.
    """
    is_timed = call.name == "futex" and ends_s != NEVER
    return is_timed and is_interpreter(memory.file_of_data(call.args[0]))
