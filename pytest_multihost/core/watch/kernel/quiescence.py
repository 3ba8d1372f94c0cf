"""Is a world quiescent at this moment: none of its threads can run, and nothing is in flight?

The scheduler is the witness. What one thread does for another - a futex, a pipe, a unix socket, an
eventfd, a signal, the end of a process - makes the other runnable before the first returns from its
system call. So if every thread is seen asleep, and none has run while they were looked at, all of
them were asleep at one instant. The looking is one pass over all threads between two readings of
the processes' CPU clocks. What the scheduler does not know is asked for:

* a thread that was preempted on its way to sleep looks asleep while it can still run: reading
  /proc/PID/task/TID/syscall waits until it is off its processor, or says that it runs
* a thread without processor time is not yet asleep: one that starves is in state R
* state D is the kernel's own work: a page from disk or swap, a disk, the exec of a vforked child
* data in flight on TCP are in no receive queue yet, but unacknowledged in their sender's; so are
  those that were lost and will be sent again. Data that wait because the receiver's queue is full
  are not in flight: only the reader can let them go on. Nor are those that have all arrived, though
  the receiver's kernel has not said so yet
* a thread that is ending, a process that has just begun, a page or file that a server in user space
  provides (FUSE): may move though nothing runs

Not its subject: work handed to the kernel that it does by itself (io_uring), for which `proof` has
a rule of its own; timers, and the world outside. Who sleeps for a millisecond is quiescent until
then, and so is who waits for a server elsewhere; `proof` judges what may end a wait. Nor does it
see datagrams on their way, which belong to nobody.

While a world works its clocks advance, which one reading shows (1 us a process). An answer about a
world that looks still costs about 20 us a thread.
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
"""Why something may move though nobody outside the world acts and no timer strikes."""

_EXITING = 0x4  # PF_EXITING in the flags of stat, the seventh word behind the name
_FLAGS = 6
_CALLS = {name: b"%d" % number for number, name in CALLS.get(os.uname().machine, {}).items()}
_CALLS_OF_FILES = {b"-1", *(_CALLS[name] for name in FILES if name in _CALLS)}
_CALLS_OF_STREAMS = {_CALLS[name] for name in STREAMS if name in _CALLS}
"""As in /proc/PID/task/TID/syscall, which has -1 for a thread that is blocked outside of any."""

_STATES: Mapping[str, Cause] = {"R": "runs", "D": "device", "T": "stopped", "t": "stopped"}


@dataclass(frozen=True, slots=True)
class Stillness:
    """A world at one moment.

    Attributes:
        causes: Why it may move, as far as the first process that may: empty if the world is
            quiescent.
        turns: How often each thread has been put on a processor so far. Between two moments at
            which a world is quiescent, a thread without a new turn did nothing; one that polls must
            have had a turn, lest it is about to find what it polls for.
    """

    causes: tuple[Cause, ...] = ()
    turns: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_quiescent(self) -> bool:
        """Whether nothing was found to move."""
        return not self.causes


@dataclass(slots=True)
class Quiescence:
    """Says of one world, whenever it is asked, whether it is quiescent.

    Attributes:
        ranks: Process id of each rank.
        harness: What belongs to the harness.
    """

    ranks: Mapping[int, int]
    harness: HarnessProcesses = field(default_factory=HarnessProcesses)
    _stats: dict[int, proc_files.Stat] = field(default_factory=dict)
    _family: Mapping[int, int | None] = field(default_factory=dict)
    _clocks: dict[int, int] = field(default_factory=dict)
    _clocks_s: float = 0.0

    def busiest_share(self) -> float:
        """Return the largest share of a processor that a process has used since the last call.

        That costs a microsecond a process. Where it is large, asking is of no use.
        """
        before, was_s = self._clocks, self._clocks_s
        self._clocks_s = time.monotonic()
        self._clocks = _clocks(self._family or self.ranks.values())
        used_ns = (each - before.get(pid, 0) for pid, each in self._clocks.items())
        return max(used_ns, default=0) / max((self._clocks_s - was_s) * 1e9, 1.0)

    @property
    def used_ns(self) -> int:
        """Processor time of all its processes when its share was last asked for."""
        return sum(each for each in self._clocks.values() if each > 0)

    @property
    def family(self) -> Mapping[int, int | None]:
        """The processes that were last asked about, each with its rank, None if unknown."""
        return self._family

    def descriptors(self) -> frozenset[tuple[int, int, str]]:
        """Return process, number and target of each open descriptor that is no regular file."""
        return frozenset(
            (pid, fd, target)
            for pid in self._family
            for fd in proc_files.entries(f"/proc/{pid}/fd") or ()
            if not (target := proc_files.link(f"/proc/{pid}/fd/{fd}")).startswith("/")
            or target.startswith("/dev/")
        )

    def ask(self, idle: Collection[int] | None = (), frozen: Collection[int] = ()) -> Stillness:
        """Return whether the world is quiescent now, or what moves.

        Args:
            idle: Threads known to do nothing but wake up and look: they may run meanwhile, but must
                be asleep when they are looked at. None: any thread may. That shows which ones do so
                again and again, and not that all were asleep at one instant.
            frozen: Ranks that are stopped and will not be continued: they and their children count
                as asleep.
        """
        turns: dict[int, int] = {}
        found = self._causes(turns, idle if idle is None else frozenset(idle), frozen)
        causes = tuple(found)  # which notes the turns
        return Stillness(causes, turns)

    def _causes(
        self, turns: dict[int, int], idle: Collection[int] | None, frozen: Collection[int]
    ) -> Iterator[Cause]:
        """Yield why the first process or connection may move that may; note all turns."""
        family = self._family or self.ranks.values()
        turns_before = _turns(family) if idle else {}
        before = _clocks(family)
        if not self._find_family():
            yield "begins"
            return
        if any(pid not in before for pid in self._family):
            yield "begins"
            return
        # Before the threads: what has arrived until then shows in them. Later data need a sender
        # that has run, and then its clock has advanced.
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
        """Yield why threads that are not idle may have run meanwhile, by clocks and turns then."""
        after = _clocks(self._family)
        ran = [pid for pid in self._family if before[pid] != after[pid]]
        if not idle:
            if ran:
                yield "runs"
            return
        was = {key: runs for key, runs in turns_before.items() if key[0] in ran}
        if any(tid not in idle for (_, tid), _ in _turns(ran).items() ^ was.items()):
            yield "runs"
        yield from self._in_flight()  # the idle ones may have sent something

    def _find_family(self) -> bool:
        """Find the processes of the world; only those are read that were not there before.

        Returns:
            False if one has begun and ended meanwhile: whatever it has started is not known.
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
    """Return the processor time of processes in nanoseconds; -1 for what is gone.

    Linux has a clock for every process id (clock_getcpuclockid(3)), exact to the moment.
    """
    found = {}
    for pid in pids:
        try:
            found[pid] = time.clock_gettime_ns(~pid << 3 | 2)
        except OSError:
            found[pid] = -1
    return found


def _thread_causes(pid: int, tid: int, turns: dict[int, int]) -> Iterator[Cause]:
    """Yield why a thread may move, and note its turns; its system call is read first."""
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
    """Return whether a wait ends by what the kernel, or a file system's server, does by itself."""
    number, _, rest = words.partition(b" ")
    if number in _CALLS_OF_FILES:
        return True
    if number not in _CALLS_OF_STREAMS:
        return False
    descriptor = int(rest.partition(b" ")[0], 16) & 0xFFFFFFFF
    mode = proc_files.file_mode(f"/proc/{pid}/fd/{descriptor}")
    return mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _turns(pids: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return process, id and number of runs of all threads of processes; -1 if unknown."""
    found = {}
    for pid in pids:
        for tid in proc_files.entries(f"/proc/{pid}/task") or ():
            runs = proc_files.read_runs(f"/proc/{pid}/task/{tid}")
            found[pid, tid] = runs[1] if runs is not None else -1
    return found
