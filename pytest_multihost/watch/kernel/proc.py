"""Look at a world's processes through /proc, without touching them.

A glance reads the ranks' main threads and is cheap enough for every second. A look reads every
thread and descriptor of the ranks and of what they have started; it is for a world that stands
still. What cannot be read is said to be unknown, never left out.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from pytest_multihost.model.process import NEVER, KernelSnapshot, Process, Thread
from pytest_multihost.proof import system_calls as calls
from pytest_multihost.proof.thread_owners import read_stack
from pytest_multihost.watch.kernel import tasks
from pytest_multihost.watch.kernel.descriptors import HarnessProcesses, Tables
from pytest_multihost.watch.kernel.elf import symbol_table
from pytest_multihost.watch.kernel.eventfds import with_holders
from pytest_multihost.watch.kernel.file_locks import holders_by_waiter
from pytest_multihost.watch.kernel.futexes import is_for_interpreter, who_wakes
from pytest_multihost.watch.kernel.memory import Memory

_PIDFD_GETFD = 438
_DEAD = frozenset({"Z", "X"})
_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a thread's wait: its key, the earliest time it can have begun, last look."""

    key: tuple[object, ...]
    since_s: float
    at_s: float


@dataclass(slots=True)
class ProcReader:
    """Sees the processes of one world.

    Attributes:
        ranks: Process id of each rank.
        harness: What belongs to the harness.
    """

    ranks: Mapping[int, int]
    harness: HarnessProcesses = field(default_factory=HarnessProcesses)
    _born: dict[int, float] = field(init=False)
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = {pid: tasks.read_stat(f"/proc/{pid}") for pid in self.ranks.values()}
        self._born = {pid: stat.started_s if stat else -1.0 for pid, stat in found.items()}

    def shallow_snapshot(self) -> KernelSnapshot:
        """See the main threads of all ranks."""
        at_s = time.monotonic()
        processes = [self._glance_at(rank, pid, at_s) for rank, pid in sorted(self.ranks.items())]
        return KernelSnapshot(at_s=at_s, processes=tuple(processes))

    def deep_snapshot(self) -> KernelSnapshot:
        """See all threads and descriptors of the ranks and of their descendants."""
        at_s = time.monotonic()
        stats = _all_stats()
        family = self._family(stats)
        links = {pid: _links(pid) for pid in family}
        names = {pid: stat.name for pid, stat in stats.items()}
        called = {pid: _call_it(rank, pid, names) for pid, (rank, _) in family.items()}
        parents = {stats[pid].parent for pid in self.ranks.values() if pid in stats}
        harness = replace(self.harness, idle=self.harness.idle & parents)
        tables = Tables({pid: each or {} for pid, each in links.items()}, names, called, harness)
        locks = holders_by_waiter()
        processes = []
        for pid, (rank, is_rank) in family.items():
            if is_rank and not (pid in stats and self._is_same(pid, stats[pid])):
                processes.append(Process(pid=pid, rank=rank))
                continue
            with _Reading(pid, at_s, self._since, self.harness, tables, locks) as reading:
                found = reading.process(rank, names.get(pid, ""), is_rank=is_rank)
            missing = found.unread if links[pid] is not None else (*found.unread, "descriptors")
            processes.append(replace(found, unread=missing))
        self._forget(processes)
        return KernelSnapshot(at_s=at_s, processes=tuple(processes), is_deep=True)

    def _glance_at(self, rank: int, pid: int, at_s: float) -> Process:
        name = ""
        threads: tuple[Thread, ...] = ()
        stat = tasks.read_stat(f"/proc/{pid}")
        if stat is not None and self._is_same(pid, stat):
            name = stat.name
            with _Reading(pid, at_s, self._since, self.harness) as reading:
                thread = reading.thread(pid)
            threads = (thread,) if thread else ()
        return Process(pid=pid, rank=rank, name=name, threads=threads)

    def _is_same(self, pid: int, stat: tasks.Stat) -> bool:
        """Tell whether the number has not been given to another process."""
        return abs(self._born[pid] - stat.started_s) < _TICK_S

    def _family(self, stats: Mapping[int, tasks.Stat]) -> dict[int, tuple[int | None, bool]]:
        """Return whose each process of the world is, and whether it is a rank; ranks first."""
        family: dict[int, tuple[int | None, bool]] = {}
        for rank, pid in sorted(self.ranks.items()):
            family[pid] = (rank, True)
        living = {pid for pid in family if pid in stats and self._is_same(pid, stats[pid])}
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.parent, []).append(pid)
        todo = sorted(living)
        while todo:
            parent = todo.pop()
            new = [pid for pid in children.get(parent, []) if pid not in family]
            family |= dict.fromkeys(new, (family[parent][0], False))
            todo += new
        family |= {pid: (rank, False) for pid, rank in self._orphans(stats, children, family)}
        return family

    def _orphans(
        self,
        stats: Mapping[int, tasks.Stat],
        children: Mapping[int, list[int]],
        family: Mapping[int, tuple[int | None, bool]],
    ) -> Iterator[tuple[int, int | None]]:
        """Yield processes whose parents have ended: those of the reaper, and of ranks' sessions."""
        sessions = {pid: rank for rank, pid in self.ranks.items()}
        spared = family.keys() | self.harness.idle | self.harness.channels | self.harness.beside
        todo = list(children.get(self.harness.reaper or -1, []))
        done: set[int] = set()
        while todo:
            pid = todo.pop()
            if pid not in spared and pid not in done:
                done.add(pid)
                todo += children.get(pid, [])
        for pid, stat in stats.items():
            if pid in done or (stat.session in sessions and pid not in spared):
                yield pid, sessions.get(stat.session)

    def _since(self, thread: Thread, at_s: float) -> tuple[float, bool]:
        """Return the earliest time at which a thread's wait can have begun, and if it is new."""
        known = self._seen.get(thread.tid)
        since_s = thread.started_s
        if known is not None and known.key == thread.wait_key:
            since_s = known.since_s
        elif known is not None:
            since_s = max(since_s, known.at_s)
        self._seen[thread.tid] = _Seen(thread.wait_key, since_s, at_s)
        return since_s, known is None or known.key != thread.wait_key

    def _forget(self, processes: list[Process]) -> None:
        alive = {thread.tid for each in processes for thread in each.threads}
        self._seen = {tid: seen for tid, seen in self._seen.items() if tid in alive}


def _all_stats() -> dict[int, tasks.Stat]:
    found = {pid: tasks.read_stat(f"/proc/{pid}") for pid in tasks.entries("/proc") or ()}
    return {pid: stat for pid, stat in found.items() if stat is not None}


def _links(pid: int) -> dict[int, str] | None:
    fds = tasks.entries(f"/proc/{pid}/fd")
    return None if fds is None else {fd: tasks.link(f"/proc/{pid}/fd/{fd}") for fd in fds}


def _call_it(rank: int | None, pid: int, names: Mapping[int, str]) -> str:
    return f"process {names.get(pid, '')} {pid}" if rank is None else f"rank {rank}"


@dataclass
class _Reading:
    """One process during one look; `tables` is None during a glance."""

    pid: int
    at_s: float
    since: Callable[[Thread, float], tuple[float, bool]]
    harness: HarnessProcesses
    tables: Tables | None = None
    locks: Mapping[int, tuple[int, ...]] | None = None
    memory: Memory = field(init=False)

    def __enter__(self) -> Self:
        self.memory = Memory(self.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.memory.close()

    def process(self, rank: int | None, name: str, *, is_rank: bool) -> Process:
        """Return everything about the process."""
        assert self.tables is not None  # noqa: S101 - for the type checker
        tids = tasks.entries(f"/proc/{self.pid}/task") or []
        tids.sort(key=lambda tid: tid != self.pid)
        threads = tuple(filter(None, (self.thread(tid) for tid in tids)))
        status = tasks.read_status(f"/proc/{self.pid}")
        links = self.tables.links[self.pid]
        descriptors = {fd: self.tables.describe(self.pid, fd) for fd in links}
        timers = tasks.read(f"/proc/{self.pid}/timers")
        unread = () if status else ("signals",)
        found = Process(
            pid=self.pid,
            rank=rank,
            is_rank=is_rank,
            name=name,
            threads=threads,
            descriptors=descriptors,
            caught=int(status.get("SigCgt", "0"), 16),
            pending=_pending(status),
            timers=None if timers is None else timers.count(b"ID:"),
            tracer=int(status.get("TracerPid", "0")),
            unread=(*(unread if threads else ()), *self.tables.unread),
        )
        return with_holders(found, self.tables)

    def thread(self, tid: int) -> Thread | None:
        """Return what a thread does; None when it is gone."""
        directory = f"/proc/{self.pid}/task/{tid}"
        stat, runs = tasks.read_stat(directory), tasks.read_runs(directory)
        if stat is None:
            return None
        if stat.state in _DEAD:
            return Thread(tid=tid, name=stat.name, state=stat.state, started_s=stat.started_s)
        call, args, pointer = tasks.read_call(directory)
        cpu_ns, count = runs or (stat.cpu_ns, -1)
        bare = Thread(
            tid=tid,
            name=stat.name,
            state=stat.state,
            call=call,
            args=args,
            pointer=pointer,
            cpu_ns=cpu_ns or stat.cpu_ns,
            runs=count,
            started_s=stat.started_s,
        )
        since_s, is_new = self.since(bare, self.at_s)
        if call in {"", "running"}:
            wchan = (tasks.read_line(f"{directory}/wchan") or b"").decode()
            return self._with_code(replace(bare, wchan=wchan, fds=None))
        found = self._wait(bare, since_s)
        is_plain = found.ends_s == NEVER and not is_new and call in calls.FUTEXES
        return found if is_plain else self._with_code(found)

    def _wait(self, thread: Thread, since_s: float) -> Thread:
        call, args = thread.call, thread.args
        fd = calls.descriptor_of(call, args)
        target = self._link(fd) if fd is not None else ""
        ends_s = self._ends(thread, since_s)
        if target.startswith("socket:") and call in calls.SOCKETS | calls.STREAMS:
            ends_s = self._socket_ends(fd or 0, ends_s, since_s)
        child = calls.child_of(call, args)
        if call in calls.PATHS:
            target = self.memory.text(args[calls.PATHS[call]])
        elif child > 0:
            stat = tasks.read_stat(f"/proc/{child}")
            target = f"child {child}: {stat.name}" if stat else f"child {child}"
        return replace(
            thread,
            ends_s=ends_s,
            fds=(fd,) if fd is not None else self._polled(call, args),
            target=target,
            child=child,
            word=who_wakes(call, args, self.memory, self.tables),
            is_for_interpreter=self.tables is not None
            and is_for_interpreter(call, args, self.memory, ends_s),
            holders=self._holders(call, args),
            is_exempt=bool(target) and self.harness.is_path(target),
        )

    def _link(self, fd: int) -> str:
        if self.tables is not None:
            return self.tables.links[self.pid].get(fd, "")
        return tasks.link(f"/proc/{self.pid}/fd/{fd}")

    def _ends(self, thread: Thread, since_s: float) -> float | None:
        limit = calls.timeout_of(thread.call, thread.args)
        if limit.kind in {"none", "unknown"}:
            return NEVER if limit.kind == "none" else None
        if limit.milliseconds is not None:
            return since_s + limit.milliseconds / 1000
        seconds = self.memory.seconds(limit.address, limit.unit)
        if seconds is None:
            return None
        if limit.kind == "realtime":
            return seconds - (time.time() - time.monotonic())
        return seconds + (since_s if limit.kind == "relative" else 0.0)

    def _socket_ends(self, fd: int, ends_s: float | None, since_s: float) -> float | None:
        """Return when a blocking call ends, with what its socket was told with SO_RCVTIMEO."""
        limit_s = _socket_limit(self.pid, fd)
        if limit_s is None or ends_s is None:
            return None
        return min(ends_s, since_s + limit_s) if limit_s else ends_s

    def _polled(self, call: str, args: tuple[int, ...]) -> tuple[int, ...] | None:
        if call in {"poll", "ppoll"}:
            return self._poll_set(args[0], args[1])
        if call in {"select", "pselect6"}:
            return self._select_set(args)
        return ()

    def _poll_set(self, address: int, count: int) -> tuple[int, ...] | None:
        data = self.memory.read(address, 8 * count) if count else b""
        if data is None:
            return None
        return tuple(fd for fd, _, _ in struct.iter_unpack("=iHH", data) if fd >= 0)

    def _select_set(self, args: tuple[int, ...]) -> tuple[int, ...] | None:
        count = args[0] & 0xFFFFFFFF
        found: set[int] = set()
        for address in filter(None, args[1:4]):
            data = self.memory.read(address, (count + 63) // 64 * 8) if count else b""
            if data is None:
                return None
            bits = int.from_bytes(data, "little")
            found |= {fd for fd in range(count) if bits >> fd & 1}
        return tuple(sorted(found))

    def _holders(self, call: str, args: tuple[int, ...]) -> tuple[int, ...] | None:
        if not calls.is_lock_wait(call, args) or self.locks is None:
            return None
        return self.locks.get(self.pid)

    def _with_code(self, thread: Thread) -> Thread:
        """Return a thread with whose code waits; of main threads that does not matter."""
        if self.tables is None or thread.tid == self.pid or not thread.pointer:
            return thread
        returns = self.memory.returns(thread.pointer)
        if returns is None:
            return thread
        is_leaf = self.memory.is_return(thread.pointer)
        code, function = read_stack(returns, symbol, is_leaf=is_leaf)
        return replace(thread, code=code, function=function)


def symbol(path: str, offset: int) -> str:
    """Return the name of the function whose code is there, empty if unknown."""
    return symbol_table(path).name_at_offset(offset)


def _pending(status: Mapping[str, str]) -> int:
    pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
    return pending & ~int(status.get("SigBlk", "0"), 16)


def _socket_limit(pid: int, fd: int) -> float | None:
    """Return the longest a blocking call on another process's socket takes: 0 for ever.

    The shorter of its two limits. None where that cannot be found out.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return None
    copy = libc.syscall(_PIDFD_GETFD, process, fd, 0)
    os.close(process)
    if copy < 0:
        return None
    try:
        with socket.socket(fileno=copy) as held:
            options = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
            data = [held.getsockopt(socket.SOL_SOCKET, option, 16) for option in options]
    except OSError:
        return None
    seconds = [whole + part / 1e6 for whole, part in (struct.unpack("=qq", each) for each in data)]
    return min(filter(None, seconds), default=0.0)
