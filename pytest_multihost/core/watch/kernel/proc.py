"""Take snapshots of a world's processes through /proc, without affecting them.

A shallow snapshot reads the ranks' main threads and is cheap enough for every quarter of a second.
A deep snapshot reads every thread and descriptor of the ranks and of their child processes; it is
for a world without progress.

Any read may fail at any time: the process or thread may end between two reads, and another may get
its id (`_is_same`). A thread that has gone is skipped; an unreadable part of a live thread is
marked unknown, never skipped.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_multihost.core.model.process import KernelSnapshot, Process, Thread, is_mark
from pytest_multihost.core.model.rank_names import PLAIN, Names
from pytest_multihost.core.watch.collection import collection_put_off
from pytest_multihost.core.watch.kernel import proc_files
from pytest_multihost.core.watch.kernel.descriptors import Tables
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses, find_family
from pytest_multihost.core.watch.kernel.process_reader import ProcessReader
from pytest_multihost.core.watch.kernel.return_addresses import CodePlace
from pytest_multihost.core.watch.kernel.time_source import MACHINE_TIME, TimeSource

_TICK_S = 0.02

_TURN_S = 0.002
"""Longer than a turn of a thread that polls."""

_PLACE = 5
"""How many parts of a wait's key say where the thread waits; the others how often it has run."""

_FEW = 8
"""How many threads that run are read once more at most."""


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
        harness: The harness's own processes around the ranks.
        time: The source of the world's time.
    """

    ranks: Mapping[int, int]
    harness: HarnessProcesses = field(default_factory=HarnessProcesses)
    time: TimeSource = MACHINE_TIME
    names: Names = PLAIN
    _born: dict[int, float] = field(init=False)
    _waits: dict[int, tuple[tuple[object, ...] | None, float, float]] = field(default_factory=dict)
    """For each thread: its wait's key, the earliest time at which the wait can have begun, and the
    time of the thread's last snapshot."""
    _codes: dict[int, tuple[tuple[str, ...], str, str]] = field(default_factory=dict)
    _calls: dict[CodePlace, bool] = field(default_factory=dict)

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
        with collection_put_off():
            return self._deep_snapshot()

    def _deep_snapshot(self) -> KernelSnapshot:
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
        names |= {pid: _program(pid) for pid in family if is_mark(names.get(pid, ""))}
        called = {
            pid: f"process {names.get(pid, '')} {pid}" if rank is None else self.names.rank(rank)
            for pid, (rank, _) in family.items()
        }
        parents = {stats[pid].parent for pid in self.ranks.values() if pid in stats}
        servers = {
            pid
            for pid in parents
            if pid in self.harness.servers
            or (pid in stats and stats[pid].parent in self.harness.controllers)
        }
        idle = self.harness.idle | _between(stats, self.harness.servers, os.getpid())
        harness = replace(self.harness, servers=frozenset(servers), idle=idle - servers)
        tables = Tables(links, names, called, harness)
        # Read only if a thread waits for a lock: reading /proc/locks waits 5 ms for all processors.
        locks = functools.cache(proc_files.holders_by_waiter)

        def reader_of(pid: int) -> ProcessReader:
            return ProcessReader(
                pid,
                at_s,
                self._since,
                self.harness,
                tables,
                locks,
                ends=ends,
                own=self.time.threads,
                codes=self._codes,
                calls=self._calls,
            )

        processes = []
        for pid, (rank, is_rank) in family.items():
            if is_rank and not (pid in stats and self._is_same(pid, stats[pid])):
                processes.append(Process(pid=pid, rank=rank))
                continue
            reader = reader_of(pid)
            with closing(reader.memory):
                found = reader.process(rank, names.get(pid, ""), tables, is_rank=is_rank)
            if self.harness.parents and (rank is None or pid in self.harness.parents):
                found = replace(found, is_parent=True)
            if pid in unread:
                found = replace(found, unread=(*found.unread, "descriptors"))
            processes.append(found)
        processes = _once_more(processes, reader_of)
        alive = {thread.tid for each in processes for thread in each.threads}
        self._waits = {tid: wait for tid, wait in self._waits.items() if tid in alive}
        self._codes = {tid: code for tid, code in self._codes.items() if tid in alive}
        return KernelSnapshot(at_s=at_s, processes=tuple(processes), is_deep=True)

    def _is_same(self, pid: int, stat: proc_files.Stat) -> bool:
        """Return whether a process id has not been given to another process."""
        return abs(self._born[pid] - stat.started_s) < _TICK_S

    def _since(self, thread: Thread, at_s: float) -> tuple[float, bool]:
        """Return the earliest time at which a thread's wait can have begun, and if it is new.

        The kernel does not report when a wait began. With the earliest possible time a relative
        timeout ends too early, never too late. A wait that was interrupted and restarted is still
        the wait seen before, or may be as old as its thread.
        """
        key, since_s, seen_s = thread.wait_key, thread.started_s, thread.started_s
        last_key, last_since_s, last_seen_s = self._waits.get(thread.tid, (None, since_s, seen_s))
        is_new = last_key != key
        if is_new and thread.is_restarted:
            is_same = last_key is not None and last_key[:_PLACE] == key[:_PLACE]
            since_s = last_since_s if is_same else since_s
        else:
            since_s = max(since_s, last_seen_s) if is_new else last_since_s
        self._waits[thread.tid] = key, since_s, at_s
        return since_s, is_new


def _between(
    stats: Mapping[int, proc_files.Stat], servers: Iterable[int], own: int
) -> frozenset[int]:
    """Return the processes from servers up to the ancestors that they share with process `own`.

    Each is of the harness: a server that is the clone of another belongs to the controller of that.
    """
    ours, found = frozenset(_with_ancestors(stats, own)), set[int]()
    for server in servers:
        path: list[int] = []
        for pid in _with_ancestors(stats, server):
            path.append(pid)
            if pid in ours:
                found.update(path)
                break
    return frozenset(found)


def _with_ancestors(stats: Mapping[int, proc_files.Stat], pid: int) -> Iterator[int]:
    seen = set[int]()
    while pid in stats and pid not in seen:
        seen.add(pid)
        yield pid
        pid = stats[pid].parent


def _once_more(
    processes: Sequence[Process], reader_of: Callable[[int], ProcessReader]
) -> list[Process]:
    """Return the processes, with the few threads that were running read once more.

    A thread of a runtime that polls every 10 ms runs for some microseconds each time. Of the
    hundreds in a large world one often runs as it is read, and delays a proof by a whole look. The
    order of reading is arbitrary, so it may as well be read last.
    """
    running = [each for process in processes for each in process.threads if _is_running(each)]
    if not 0 < len(running) <= _FEW:
        return list(processes)
    time.sleep(_TURN_S)
    return [
        _with_threads_read(each, reader_of) if any(map(_is_running, each.threads)) else each
        for each in processes
    ]


def _with_threads_read(process: Process, reader_of: Callable[[int], ProcessReader]) -> Process:
    reader = reader_of(process.pid)
    with closing(reader.memory):
        found = [reader.thread(each.tid) if _is_running(each) else each for each in process.threads]
    return replace(process, threads=tuple(filter(None, found)))


def _is_running(thread: Thread) -> bool:
    return thread.state == "R" or thread.call == "running"


def _program(pid: int) -> str:
    """Return the name of a process's program, as the kernel names its main thread at first."""
    command = proc_files.read(f"/proc/{pid}/cmdline") or b""
    return os.fsdecode(command.partition(b"\0")[0].rpartition(b"/")[2])
