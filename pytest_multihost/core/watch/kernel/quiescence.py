"""Decide whether a world is quiescent: none of its threads can run, and nothing is in flight.

The decision relies on the scheduler. Any means by which one thread wakes another (a futex, a pipe,
a unix socket, an eventfd, a signal, the end of a process) makes the other runnable before the first
returns from its system call. So if every thread was found asleep, and none ran during the reading,
all of them were asleep at one instant. The reading is one pass over all threads between two
readings of the processes' CPU clocks. Some things the scheduler does not show:

* A thread that was preempted on its way to sleep looks asleep although it can still run. Reading
  /proc/PID/task/TID/syscall waits until the thread is off its processor, or reports that it runs.
* A thread that gets no processor time is not asleep: its state is R.
* State D is the kernel's own work: a page from disk or swap, a disk, the exec of a vforked child.
* TCP data in flight are in no receive queue yet, but they are unacknowledged at the sender. The
  same holds for lost data that will be sent again. Data that wait because the receiver's queue is
  full are not in flight: they move only if the receiver reads. Data that have all arrived are not
  in flight either, even if the receiver's kernel has not acknowledged them yet.
* A thread that is ending, a process that is starting, or a page or file that a server in user
  space provides (FUSE) may move although nothing runs.

Three things are out of scope. `proof` has a rule of its own for work that the kernel does by itself
(io_uring). `proof` also judges the possible ends of a wait, such as a timer or the outside world: a
thread in a 1 ms sleep counts as quiescent until it wakes, and so does a thread that waits for an
external server. Datagrams on their way belong to no process and are not seen.

While a world works, its clocks advance; one reading shows that (1 us a process). A full answer
costs about 20 us a thread.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_multihost.core.proof.system_calls import CALLS, FILES, STREAMS
from pytest_multihost.core.proof.threads import DEAD
from pytest_multihost.core.watch.kernel import proc_files
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses, find_family
from pytest_multihost.core.watch.kernel.sockets import sockets_in_flight

Cause = Literal[
    "runs",  # on a processor, or waits for one
    "device",  # in uninterruptible sleep
    "kernel",  # blocked outside of any system call, or in one for a file
    "stopped",  # by a signal or a tracer
    "begins",
    "ends",
    "data",  # in flight
    "unread",
]
"""Why something may move although no timer expires and nothing outside the world acts."""

_EXITING = 0x4  # PF_EXITING in the flags of stat, the seventh word after the name
_FLAGS = 6
_CALLS = {name: b"%d" % number for number, name in CALLS.get(os.uname().machine, {}).items()}
_CALLS_OF_FILES = {b"-1", *(_CALLS[name] for name in FILES if name in _CALLS)}
_CALLS_OF_STREAMS = {_CALLS[name] for name in STREAMS if name in _CALLS}
"""As in /proc/PID/task/TID/syscall, which shows -1 for a thread blocked outside any system call."""

_TRIES, _TRY_S = 5, 0.005
"""How many checks to make of a world that looks still, and the time between two."""

_STATES: Mapping[str, Cause] = {"R": "runs", "D": "device", "T": "stopped", "t": "stopped"}


@dataclass(frozen=True, slots=True)
class Stillness:
    """Whether a world was quiescent at one instant.

    Attributes:
        causes: Why the first process found to be moving may move; empty if the world is quiescent.
        turns: How often each thread has been put on a processor so far. If a world is quiescent
            twice, a thread without a new turn did nothing in between. A polling thread must have
            had a new turn: otherwise its next poll might find the object of its wait.
    """

    causes: tuple[Cause, ...] = ()
    turns: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_quiescent(self) -> bool:
        """Whether nothing was found that may move."""
        return not self.causes


@dataclass(slots=True)
class Quiescence:
    """Decides for one world, as often as needed, whether it is quiescent.

    Attributes:
        harness: The harness's own processes, which are not part of the world.
    """

    ranks: Mapping[int, int]
    harness: HarnessProcesses = field(default_factory=HarnessProcesses)
    _stats: dict[int, proc_files.Stat] = field(default_factory=dict)
    _family: Mapping[int, int | None] = field(default_factory=dict)
    _clocks: dict[int, int] = field(default_factory=dict)
    _clocks_s: float = 0.0

    def busiest_share(self) -> float:
        """Return the largest share of a processor that any process has used since the last call.

        This costs 1 us a process. If the share is large, calling `ask` is of no use.
        """
        before, was_s = self._clocks, self._clocks_s
        self._clocks_s = time.monotonic()
        self._clocks = _clocks(self._family or self.ranks.values())
        used_ns = (each - before.get(pid, 0) for pid, each in self._clocks.items())
        return max(used_ns, default=0) / max((self._clocks_s - was_s) * 1e9, 1.0)

    @property
    def used_ns(self) -> int:
        """Processor time of all processes at the last call of `busiest_share`."""
        return sum(each for each in self._clocks.values() if each > 0)

    @property
    def family(self) -> Mapping[int, int | None]:
        """The processes found by the last `ask`, each with its rank, None if unknown."""
        return self._family

    def descriptors(self) -> frozenset[tuple[int, int, str]]:
        """Return process, number and target of each open descriptor, except regular files."""
        return frozenset(
            (pid, fd, target)
            for pid in self._family
            for fd in proc_files.entries(f"/proc/{pid}/fd") or ()
            if not (target := proc_files.link(f"/proc/{pid}/fd/{fd}")).startswith("/")
            or target.startswith("/dev/")
        )

    def ask(self, idle: Collection[int] | None = (), frozen: Collection[int] = ()) -> Stillness:
        """Return whether the world is quiescent now, and otherwise the moving process.

        Args:
            idle: Threads known to do nothing except wake up and poll. They may run during the
                reading, but must be asleep when they are read. None: any thread may run. This shows
                which threads keep polling, but not that all were asleep at one instant.
            frozen: Ranks that are stopped and will not be continued. They and their children count
                as asleep.
        """
        if not self.ranks:  # all are on other machines, and this one may have no /proc
            return Stillness()
        turns: dict[int, int] = {}
        found = self._causes(turns, idle if idle is None else frozenset(idle), frozen)
        causes = tuple(found)  # this fills turns
        return Stillness(causes, turns)

    def turns(
        self, idle: Collection[int] | None, *, apart_s: float = _TRY_S
    ) -> Mapping[int, int] | None:
        """Return how often each thread has run, if the world is quiescent; None if it is not.

        Several checks are made, because polling threads are seldom all asleep at once.

        Args:
            idle: Threads that may run; see `ask`.
            apart_s: The time between two checks.
        """
        for _ in range(_TRIES):
            found = self.ask(idle)
            if found.is_quiescent:
                return found.turns
            time.sleep(apart_s)
        return None

    def _causes(
        self, turns: dict[int, int], idle: Collection[int] | None, frozen: Collection[int]
    ) -> Iterator[Cause]:
        """Yield why the first moving process or connection may move; note all turns."""
        family = self._family or self.ranks.values()
        turns_before = _turns(family) if idle else {}
        before = _clocks(family)
        if not self._find_family():
            yield "begins"
            return
        if any(pid not in before for pid in self._family):
            yield "begins"
            return
        # Before the threads: data that has arrived by now shows in them. Later data needs a sender
        # that runs, and a run advances its clock.
        if found := list(self._in_flight()):
            yield from found
            return
        for pid in self._family:
            tids = proc_files.entries(f"/proc/{pid}/task") or []
            found = [each for tid in tids for each in _thread_causes(pid, tid, turns)]
            if self._family[pid] in frozen:
                found = [each for each in found if each != "stopped"]
            if found:
                yield from found
                return
        if idle is not None:
            yield from self._ran_since(before, turns_before, idle)

    def _ran_since(
        self,
        before: Mapping[int, int],
        turns_before: Mapping[tuple[int, int], int],
        idle: Collection[int],
    ) -> Iterator[Cause]:
        """Yield a cause if a thread that is not idle has run since the clocks and turns before."""
        after = _clocks(self._family)
        ran = [pid for pid in self._family if before[pid] != after[pid]]
        if not idle:
            if ran:
                yield "runs"
            return
        was = {key: runs for key, runs in turns_before.items() if key[0] in ran}
        if any(tid not in idle for (_, tid), _ in _turns(ran).items() ^ was.items()):
            yield "runs"
        yield from self._in_flight()  # the idle threads may have sent something

    def _find_family(self) -> bool:
        """Find the processes of the world; read only the new ones.

        Returns:
            False if a process began and ended meanwhile: its children are unknown.
        """
        pids = proc_files.entries("/proc") or []
        if self._stats.keys() == set(pids):
            return True
        found = {pid: self._stats.get(pid) or proc_files.read_stat(f"/proc/{pid}") for pid in pids}
        self._stats = {pid: each for pid, each in found.items() if each is not None}
        family = find_family(self._stats, self.ranks, lambda *_: True, self.harness)
        self._family = {pid: rank for pid, (rank, _) in family.items() if pid in self._stats}
        return len(self._stats) == len(pids)

    def _in_flight(self) -> Iterator[Cause]:
        """Yield why something may move between sockets of the world."""
        here = proc_files.link("/proc/self/ns/net")
        for pid in self._family:
            space = proc_files.link(f"/proc/{pid}/ns/net")
            if space not in {"", here, *self.harness.socket_tables}:
                yield "unread"

        def inodes() -> frozenset[int]:
            links = (
                proc_files.link(f"/proc/{pid}/fd/{fd}")
                for pid in self._family
                for fd in proc_files.entries(f"/proc/{pid}/fd") or ()
            )
            return frozenset(int(each[8:-1]) for each in links if each.startswith("socket:"))

        for table in (None, *self.harness.socket_tables.values()):
            try:
                if sockets_in_flight(inodes, table):
                    yield "data"
            except OSError:
                yield "unread"


def _clocks(pids: Collection[int]) -> dict[int, int]:
    """Return the processor time of each process in nanoseconds; -1 if it is gone.

    Linux has a clock for every process id (clock_getcpuclockid(3)); it is never out of date.
    """
    found = {}
    for pid in pids:
        try:
            found[pid] = time.clock_gettime_ns(~pid << 3 | 2)
        except OSError:
            found[pid] = -1
    return found


def _thread_causes(pid: int, tid: int, turns: dict[int, int]) -> Iterator[Cause]:
    """Yield why a thread may move, and note its turns. Reads its system call first."""
    directory = f"/proc/{pid}/task/{tid}"
    call = proc_files.read(directory + "/syscall", is_line=True)
    data = proc_files.read(directory + "/stat", is_line=True)
    words = data.rpartition(b") ")[2].split() if data else [b"X"]
    state = words[0].decode()
    if state in DEAD:
        if data is None:
            yield "ends"
        return
    runs = proc_files.read_runs(directory)
    turns[tid] = runs[1] if runs is not None else -1
    if state in _STATES:
        yield _STATES[state]
    elif int(words[_FLAGS]) & _EXITING:
        yield "ends"
    elif call is None or runs is None:
        yield "unread"
    elif call.startswith(b"running"):
        yield "runs"
    elif _is_for_kernel(pid, call):
        yield "kernel"


def _is_for_kernel(pid: int, words: bytes) -> bool:
    """Return whether the kernel, or a file system's server, may end this wait by itself."""
    number, _, rest = words.partition(b" ")
    if number in _CALLS_OF_FILES:
        return True
    if number not in _CALLS_OF_STREAMS:
        return False
    descriptor = int(rest.partition(b" ")[0], 16) & 0xFFFFFFFF
    mode = proc_files.file_mode(f"/proc/{pid}/fd/{descriptor}")
    return mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _turns(pids: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return how often each thread has run, by process id and thread id; -1 if unknown."""
    found = {}
    for pid in pids:
        for tid in proc_files.entries(f"/proc/{pid}/task") or ():
            runs = proc_files.read_runs(f"/proc/{pid}/task/{tid}")
            found[pid, tid] = runs[1] if runs is not None else -1
    return found
