"""Read one process through /proc: its threads, descriptors and memory."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress

from pytest_multihost.core.model.process import (
    IN_TURNS,
    NEVER,
    SERVES_IN_TURNS,
    Process,
    Thread,
)
from pytest_multihost.core.proof.runtime_threads import caller_of, profiler_of, read_stack
from pytest_multihost.core.proof.system_calls import (
    ENDED_BY_SIGNALS,
    EPOLLS,
    FUTEXES,
    POLLS,
    SOCKETS,
    STREAMS,
    SystemCall,
)
from pytest_multihost.core.proof.threads import DEAD
from pytest_multihost.core.watch.kernel import proc_files
from pytest_multihost.core.watch.kernel.descriptors import Tables
from pytest_multihost.core.watch.kernel.elf import exported_function, symbol_table
from pytest_multihost.core.watch.kernel.foreign_processes import with_eventfd_holders
from pytest_multihost.core.watch.kernel.futexes import waits_for_gil, who_wakes
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses
from pytest_multihost.core.watch.kernel.memory import Memory
from pytest_multihost.core.watch.kernel.return_addresses import CodePlace, ReturnAddresses
from pytest_multihost.core.watch.kernel.shared_objects import holders_by_descriptors
from pytest_multihost.core.watch.kernel.sockets import borrowed

_MOST_DESCRIPTORS = 1 << 20
"""How many descriptors the waits of a process are read for: Linux's default for one process."""


@dataclass
class ProcessReader:
    """Reads one process during one snapshot; its memory must be closed.

    Attributes:
        since: Returns the earliest time at which a thread's wait can have begun, and whether the
            wait is new since the last snapshot.
        harness: The harness's own processes around the ranks.
        tables: None in a shallow snapshot.
        locks: Returns the holders for each process that waits for a file lock; None if unknown.
        ends: When timed waits end, by thread: see `TimeSource.ends`.
        own: Names of threads that only serve the world's time source.
        codes: Code, function and caller of threads whose stacks were read; kept between snapshots.
        calls: See `ReturnAddresses`; kept likewise.
    """

    pid: int
    at_s: float
    since: Callable[[Thread, float], tuple[float, bool]]
    harness: HarnessProcesses
    tables: Tables | None = None
    locks: Callable[[], Mapping[int, tuple[int, ...]] | None] = lambda: None
    ends: Mapping[int, float] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    codes: dict[int, tuple[tuple[str, ...], str, str]] = field(default_factory=dict)
    calls: dict[CodePlace, bool] = field(default_factory=dict)
    _described: int = field(default=0, init=False)
    memory: Memory = field(init=False)
    returns: ReturnAddresses = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Memory(self.pid)
        self.returns = ReturnAddresses(self.memory, self.calls)

    def process(self, rank: int | None, name: str, tables: Tables, *, is_rank: bool) -> Process:
        """Return the process with its threads, descriptors and signals."""
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
            status=self._ended(threads),
        )
        return with_eventfd_holders(found, tables.foreign, tables.names, tables.harness)

    def _ended(self, threads: tuple[Thread, ...]) -> int:
        """Return the status of a process that has ended and for which no process has waited."""
        if not threads or threads[0].state not in DEAD:
            return 0
        stat = proc_files.read_stat(f"/proc/{self.pid}")
        return stat.status if stat is not None else 0

    def thread(self, tid: int) -> Thread | None:
        """Return a thread with its wait; None if it is gone."""
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
            is_restarted=call.is_restarted,
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
        # Reading the stack costs most. It is the same if the thread is still in the same wait, and
        # a thread that still waits in a futex without an end needs none.
        if not is_new and found.ends_s == NEVER and call.name in FUTEXES:
            return found
        if is_new:
            self.codes.pop(tid, None)
        elif (known := self.codes.get(tid)) is not None:
            return replace(found, code=known[0], function=known[1], caller=known[2])
        return self._with_code(found)

    def _with_wait(self, thread: Thread, call: SystemCall, since_s: float) -> Thread:
        fd, child = call.descriptor, call.child
        ends_s = self.ends.get(thread.tid) or self._ends_s(call, since_s)
        if self._waits_in_turns(thread, call):
            ends_s = NEVER
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
            holders=self._lock_holders(call) if call.is_file_lock else None,
            is_exempt=thread.name in self.own or (bool(target) and self.harness.is_path(target)),
        )

    def _lock_holders(self, call: SystemCall) -> tuple[int, ...] | None:
        """Return the processes that hold the lock of a file for which a call waits."""
        found = (self.locks() or {}).get(self.pid) if self.tables is not None else None
        if self.tables is None or (found and all(pid > 0 for pid in found)):
            return found
        address = call.args[2] if call.name == "fcntl" else 0
        return holders_by_descriptors(self.pid, call.args[0] & 0xFFFFFFFF, address)

    def _waits_in_turns(self, thread: Thread, call: SystemCall) -> bool:
        """Return whether a thread waits again when this wait times out."""
        if thread.name == SERVES_IN_TURNS:  # it starts no thread meanwhile
            return call.name in POLLS
        if thread.ticks:  # nor does this one
            return call.name in POLLS | EPOLLS
        is_main = thread.tid == self.pid  # threads inherit the name of their starter
        return is_main and thread.name == IN_TURNS and call.name in POLLS

    def _ends_s(self, call: SystemCall, since_s: float) -> float | None:
        """Return when a timeout in the call's arguments ends the call, on the monotonic clock."""
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
        """Return the descriptors that poll(2) or select(2) waits for; None if unreadable."""
        found: set[int] = set()
        if call.name in {"poll", "ppoll"}:
            address, count = call.args[0], call.args[1] & 0xFFFFFFFF
            data = self._descriptors(address, count, 8 * count)
            if data is None:
                return None
            found = {fd for fd, _, _ in struct.iter_unpack("=iHH", data) if fd >= 0}
        elif call.name in {"select", "pselect6"}:
            count = min(call.args[0] & 0xFFFFFFFF, self._most_descriptors)
            for address in filter(None, call.args[1:4]):
                data = self._descriptors(address, count, (count + 63) // 64 * 8)
                if data is None:
                    return None
                found.update(fd for fd in _bits(data) if fd < count)
        return tuple(sorted(found))

    def _descriptors(self, address: int, count: int, size: int) -> bytes | None:
        """Return a process's data for so many descriptors; None if it cannot be read.

        All its threads together have room for `_MOST_DESCRIPTORS`: a process may have thousands of
        threads that wait for as many descriptors as it likes.
        """
        if not count:
            return b""
        self._described += count
        if self._described > _MOST_DESCRIPTORS:
            return None
        return self.memory.read(address, size)

    @property
    def _most_descriptors(self) -> int:
        """The number of descriptors that the process has room for, to which select(2) keeps."""
        size = proc_files.read_status(f"/proc/{self.pid}").get("FDSize", "")
        return int(size) if size.isdecimal() else _MOST_DESCRIPTORS

    def _with_code(self, thread: Thread) -> Thread:
        """Return a thread with the code that waits; of a main thread only the code that calls."""
        is_main, is_fragile = thread.tid == self.pid, thread.call in ENDED_BY_SIGNALS
        if self.tables is None or not thread.pointer or (is_main and not is_fragile):
            return thread
        returns = self.returns.of_stack(thread.pointer)
        if returns is None:
            return thread
        caller = caller_of(returns) if is_fragile else ""
        if is_main:
            return replace(thread, caller=caller)
        is_leaf = self.returns.is_at(thread.pointer)
        code, function = read_stack(
            returns, lambda path, offset: symbol_table(path).name_at_offset(offset), is_leaf=is_leaf
        )
        if not function and thread.ends_s != NEVER and thread.call in FUTEXES:
            function = profiler_of(returns, exported_function)
        self.codes[thread.tid] = code, function, caller
        return replace(thread, code=code, function=function, caller=caller)


def _bits(data: bytes) -> Iterator[int]:
    """Yield the numbers of the bits that are set, where most are not."""
    for at in compress(range(len(data)), data):
        yield from (8 * at + bit for bit in range(8) if data[at] >> bit & 1)


def _socket_timeout_s(pid: int, fd: int) -> float | None:
    """Return the timeout of blocking calls on another process's socket.

    No file in /proc has SO_RCVTIMEO and SO_SNDTIMEO (socket(7)), so they are read from the socket.

    Returns:
        The shorter of both; NEVER if neither is set; None if they cannot be read.
    """
    try:
        with borrowed(pid, fd) as held:
            options = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
            data = [held.getsockopt(socket.SOL_SOCKET, option, 16) for option in options]
    except (OSError, ValueError):
        return None
    seconds = [whole + part / 1e6 for whole, part in (struct.unpack("=qq", each) for each in data)]
    return min(filter(None, seconds), default=NEVER)
