"""Reads the ranks of a running job on this machine: their threads, stacks and operations."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from pytest_multihost.core.blame.inferred import SERVICE, operation_of, plain_name, waits_for_peer
from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.process import NEVER, KernelSnapshot
from pytest_multihost.core.model.stack import (
    Dump,
    Frame,
    NativeThread,
    SourceContext,
    innermost_user_frame,
    is_library,
)
from pytest_multihost.core.proof.runtime_threads import is_ended_by_stop
from pytest_multihost.core.proof.system_calls import FUTEXES
from pytest_multihost.core.proof.threads import main_labels
from pytest_multihost.core.watch.kernel import ProcReader, Quiescence
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses
from pytest_multihost.core.watch.kernel.proc_files import path_below, root_of
from pytest_multihost.core.watch.probes.dump import with_tasks
from pytest_multihost.core.watch.probes.native_frames import NativeStacks, native_threads
from pytest_multihost.core.watch.probes.py_spy import SpiedThread, dump_of, spied_threads
from pytest_multihost.extensions.live.barriers import BARRIER, Barrier, barrier_of_call
from pytest_multihost.extensions.live.batons import awaited_files, left_behind
from pytest_multihost.extensions.live.coroutines import awaited_by
from pytest_multihost.extensions.live.mpi import operation_of_frames, operation_of_line, uses_mpi
from pytest_multihost.extensions.live.parents import (
    ancestors,
    looks_in_turns,
    programs_between,
    threads_of_others,
    waiting_shells,
    without,
)
from pytest_multihost.extensions.live.processes import (
    Job,
    check_rights,
    is_agent,
    is_python,
    read_maps,
)
from pytest_multihost.extensions.live.remains import States, states_of, without_remains
from pytest_multihost.extensions.live.stack_words import read_stack_words
from pytest_multihost.extensions.live.waits import (
    UNNAMED,
    SeenWait,
    as_of_probably_all,
    as_of_some,
    is_in_ddp,
    is_of_jax,
    seen_operation,
    seen_wait,
    with_barrier,
)

_APART_S = 0.5
"""Time between the two snapshots: a thread that computes has used CPU time meanwhile."""

_STOPPED_S = 2.0
"""The same if a rank is stopped: a profiler lets it continue after a moment."""

_TRY_S = 0.01

_SAMPLES, _SAMPLE_S = 3, 0.3
"""How often a rank that spins is read again: it must not have moved."""

_BLOCKED = frozenset({"BLOCKED", "IO"})
_POLLS = frozenset({"SLEEPING", "RUNNING"})
"""Labels of a thread that may be polling for the end of work that it has launched."""

_READ = _POLLS | {"BLOCKED"}
_XLA = ("xla::", "tsl::", "jax::")
_GONE = frozenset({"EXITED", "STOPPED"})


@dataclass(frozen=True, slots=True)
class UserLine:
    """One line of the user's code."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Stacks:
    """The facts that the stacks of ranks show.

    Attributes:
        now: A deep snapshot, taken after the stacks were read.
        waits: By rank, the operation that it waits in.
        dumps: The stacks that could be read.
        gil_holders: Ranks whose main thread holds the GIL.
        unread: By rank, why its stacks could not be read.
        unobserved: Other things that could not be read, one sentence each.
        native: By rank, native frames of the main thread, if they were read.
        lines: The user's lines on the stacks, from files on the ranks' own machine.
        left: The remains of a killed process that ranks wait for, one sentence each.
        in_turns: Threads that only look for ended processes, and until when.
        are_parents_busy: Whether a program of Python that has started ranks runs, or will run by
            a timer of its own: it may be about to end them.
    """

    now: KernelSnapshot
    waits: Mapping[int, SeenWait] = field(default_factory=dict)
    dumps: tuple[Dump, ...] = ()
    gil_holders: frozenset[int] = frozenset()
    unread: Mapping[int, str] = field(default_factory=dict)
    unobserved: tuple[str, ...] = ()
    native: Mapping[int, tuple[NativeThread, ...]] = field(default_factory=dict)
    lines: tuple[UserLine, ...] = ()
    left: tuple[str, ...] = ()
    in_turns: Mapping[int, float] = field(default_factory=dict)
    are_parents_busy: bool = False


class JobReader(Protocol):
    """Reads the ranks of a job, on one machine or on several."""

    def shallow_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of the main threads."""

    def deep_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of all threads and file descriptors."""

    def read_stacks(self, *, reads_native: bool) -> Stacks:
        """Return the facts in the stacks, some time after the last deep snapshot.

        Args:
            reads_native: Whether threads may be stopped for a moment to read native frames.
        """

    def turns(self, idle: Collection[int]) -> Mapping[int, int] | None:
        """Return how often each thread has run.

        None if a thread other than the `idle` ones is not quiescent, or if that cannot be asked.
        """


@dataclass(slots=True)
class LocalReader:
    """Reads the ranks on this machine; a `JobReader`.

    Raises:
        MultihostError: A rank may not be read; the error names the command that changes that.
    """

    job: Job
    context: SourceContext
    _proc: ProcReader = field(init=False)
    _parents: ProcReader = field(init=False)
    _quiescence: Quiescence = field(init=False)
    _before: KernelSnapshot | None = None
    _around: tuple[int, ...] = ()
    _exempt: frozenset[int] = frozenset()
    _states: States = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pid in self.job.pids.values():
            check_rights(pid)
        # Ranks on other machines may act through an agent's store.
        pids = self.job.pids if len(self.job.pids) == self.job.size else {}
        within = self.job.within
        agents = frozenset(filter(is_agent, _parents(pids.values())))
        above = {*_parents(self.job.pids.values())} - {*self.job.pids.values()}
        above -= self.job.controllers
        programs = sorted(pid for pid in above if not is_agent(pid) and is_python(pid))
        self._parents = ProcReader({} if within else dict(enumerate(programs)))
        self._around = programs_between(within, self.job.pids.values()) if within else ()
        harness = HarnessProcesses(
            controllers=self.job.controllers | (frozenset() if within else agents),
            title="torchrun",
            parents=frozenset({within} - {0}),
            idle=frozenset({os.getpid()}) if within else frozenset(),
        )
        self._proc = ProcReader(self.job.pids, harness)
        self._quiescence = Quiescence(self.job.pids, harness)

    def shallow_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of the main threads."""
        return self._proc.shallow_snapshot()

    def deep_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of all threads and file descriptors."""
        now = without_remains(self._proc.deep_snapshot(), self._states)
        self._before = without(now, self._exempt, self.job.alarmed)
        return self._before

    def read_stacks(self, *, reads_native: bool) -> Stacks:
        """Return the facts in the stacks, at least half a second after the last deep snapshot.

        Args:
            reads_native: Whether threads may be stopped for a moment to read native frames.
        """
        before = self._before or self.deep_snapshot()
        above, ranks = self._parents.shallow_snapshot(), {*self.job.pids.values()}
        asked = {**self.job.pids, **{-pid: pid for pid in self._around if pid not in ranks}}
        found, unread = spied_threads(asked)
        self._states = states_of(asked, found)
        around = {-key: each for key, each in found.items() if key < 0}
        threads = {rank: each for rank, each in found.items() if rank >= 0}
        unread = {rank: why for rank, why in unread.items() if rank >= 0}
        self._exempt = threads_of_others(found)
        is_stopped = any(each.main and each.main.state in "Tt" for each in before.ranks.values())
        apart_s = _STOPPED_S if is_stopped else _APART_S
        time.sleep(max(0.0, apart_s - (time.monotonic() - before.at_s)))
        now = self.deep_snapshot()
        seen = _Seen(self.job, before, now, threads, self.context)
        waits, native = seen.waits(reads_native=reads_native)
        waits = self._steady(waits, threads)
        dumps = tuple(self._dump(rank, each) for rank, each in threads.items())
        return Stacks(
            now=now,
            waits=waits,
            dumps=dumps,
            gil_holders=frozenset(
                rank
                for rank, each in threads.items()
                if any(one.is_main and one.holds_gil for one in each)
            ),
            unread=unread,
            unobserved=native.unobserved,
            native={
                rank: tuple(each for each in threads if each.thread == self.job.pids[rank])
                for rank, threads in native.threads.items()
            },
            lines=tuple(dict.fromkeys(line for each in dumps for line in self._lines(each))),
            left=left_behind(awaited_files(threads)),
            in_turns={
                **waiting_shells(now),
                **looks_in_turns(around, [each.pid for each in now.processes]),
            },
            are_parents_busy=any(
                label in _POLLS or activity.ends_in_s is not None
                for label, activity in main_labels(above, self._parents.shallow_snapshot()).values()
            ),
        )

    def _dump(self, rank: int, threads: Sequence[SpiedThread]) -> Dump:
        """Return the stacks of a rank, with the states of the tasks of the main thread's loop."""
        main = next((each for each in threads if each.is_main), None)
        root = self.context.root
        tasks = awaited_by(self.job.pids[rank], main, root) if main is not None else ()
        return with_tasks(dump_of(rank, threads), tasks)

    def _steady(
        self, waits: Mapping[int, SeenWait], threads: Mapping[int, Sequence[SpiedThread]]
    ) -> Mapping[int, SeenWait]:
        """Return the waits; of spinning ranks, only waits that look the same each time."""
        spin = {rank for rank, each in waits.items() if each.spins}
        for _ in range(_SAMPLES if spin else 0):
            time.sleep(_SAMPLE_S)
            again, _ = spied_threads({rank: self.job.pids[rank] for rank in spin})
            spin = {rank for rank in spin if _is_same(threads.get(rank), again.get(rank))}
        return {
            rank: SeenWait() if each.spins and rank not in spin else each
            for rank, each in waits.items()
        }

    def _lines(self, dump: Dump) -> Iterator[UserLine]:
        """Yield the user's lines on the stacks of a rank; of unreadable files without a text."""
        context = _as_seen_by(self.job.pids[dump.rank], self.context)
        frames = {frame for thread in dump.threads for frame in thread.frames} | {*dump.awaiting}
        for file, line in sorted({(e.file, e.line) for e in frames if not is_library(e.file)}):
            yield UserLine(file, line, context.source_of(file, line))

    def turns(self, idle: Collection[int]) -> Mapping[int, int] | None:
        """Return how often each thread has run; None if one except `idle` is not quiescent."""
        return self._quiescence.turns(idle, apart_s=_TRY_S)


def _is_same(one: Sequence[SpiedThread] | None, two: Sequence[SpiedThread] | None) -> bool:
    """Return whether a main thread has the same frames with the same variables in two readings."""
    mains = [next((each for each in found or () if each.is_main), None) for found in (one, two)]
    seen = [(each.frames, each.values) for each in mains if each is not None]
    return len(seen) == len(mains) and seen[0] == seen[1]


def _parents(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        yield from islice(ancestors(pid), 1)


def _as_seen_by(pid: int, context: SourceContext) -> SourceContext:
    """Return a context that reads the files of a process: a container has other ones."""
    root, source_of = root_of(pid), context.source_of

    def source_below(file: str, line: int) -> str:
        path = path_below(root, file) if file.startswith("/") else ""
        return source_of(path, line) if path else ""

    return replace(context, source_of=source_below) if root else context


@dataclass(frozen=True, slots=True)
class _Seen:
    """The facts from which the operations of ranks are derived."""

    job: Job
    before: KernelSnapshot
    now: KernelSnapshot
    threads: Mapping[int, Sequence[SpiedThread]]
    context: SourceContext

    def waits(self, *, reads_native: bool) -> tuple[Mapping[int, SeenWait], NativeStacks]:
        """Return the operation that each rank waits in, and native frames if they may be read."""
        labels = {rank: label for rank, (label, _) in main_labels(self.before, self.now).items()}
        found = {
            rank: self._in_mpi(rank, labels.get(rank)) or self._by_frames(rank, labels.get(rank))
            for rank in self.job.pids
        }
        asked = [
            rank
            for rank, each in found.items()
            if (each.operation is None or each.operation.name == "work.wait")
            and labels.get(rank) not in _GONE
        ]
        here = {rank: pid for rank, pid in self.job.pids.items() if labels.get(rank) not in _GONE}
        for rank, process in self.now.ranks.items():
            if any(map(is_ended_by_stop, process.threads)):  # it is to hang on as before
                here.pop(rank, None)
        native = native_threads(here) if reads_native else NativeStacks()
        for rank in asked:
            threads = native.threads.get(rank)
            in_mpi = self._in_mpi_by_native(rank, threads or ())
            found[rank] = in_mpi or self._by_native(rank, found[rank], labels.get(rank), threads)
        found = {rank: self._with_end(rank, each) for rank, each in found.items()}
        gone = {
            rank: replace(each, is_unclear=False)
            for rank, each in found.items()
            if labels.get(rank) in _GONE
        }
        return {**found, **gone}, native

    def _main(self, rank: int) -> SpiedThread | None:
        return next((each for each in self.threads.get(rank, ()) if each.is_main), None)

    def _user_frame(self, rank: int) -> Frame | None:
        main = self._main(rank)
        return innermost_user_frame(main.frames) if main is not None else None

    def _by_frames(self, rank: int, label: str | None) -> SeenWait:
        """Return the wait of the main thread by Python frames.

        If they show no operation and the main thread is blocked, it may wait for another thread,
        so the frames of the others are used.
        """
        main, user = self._main(rank), self._user_frame(rank)
        context = _as_seen_by(self.job.pids[rank], self.context)
        wait = seen_wait(
            main.frames if main is not None else (),
            context.place(user).source if user is not None else "",
            size=self.job.size,
            at_s=self.now.at_s,
            is_blocked=label in _BLOCKED,
            values=main.values if main is not None else (),
        )
        if wait.operation is not None:
            own = replace(wait.operation, thread=self.job.pids[rank])
            return replace(wait, operation=own)
        if label != "BLOCKED":
            return wait
        for each in self.threads.get(rank, ()):
            operation = seen_operation(
                each.frames,
                each.values,
                size=self.job.size,
                at_s=self.now.at_s,
                thread=each.tid,
            )
            if operation is not None:
                return SeenWait(operation, is_apart=is_of_jax(each.frames))
        return wait

    def _in_mpi(self, rank: int, label: str | None) -> SeenWait | None:
        """Return the operation of MPI that the innermost line performs, if it does one."""
        main = self._main(rank)
        if main is None or not main.frames or label in _GONE:
            return None
        if not uses_mpi(read_maps(self.job.pids[rank])):
            return None
        context = _as_seen_by(self.job.pids[rank], self.context)
        found = operation_of_line(
            context.place(main.frames[0]).source,
            main.values[0] if main.values else {},
            context.lines_of(main.frames[0].file),
            size=self.job.size,
            at_s=self.now.at_s,
            is_own=not is_library(main.frames[0].file),
        )
        return None if found is None else self._of_mpi(rank, found, spins=label == "RUNNING")

    def _in_mpi_by_native(self, rank: int, native: Sequence[NativeThread]) -> SeenWait | None:
        """Return the operation of MPI that native frames of the main thread show, if any."""
        main = [each for each in native if each.thread == self.job.pids[rank]]
        found = operation_of_frames(main, size=self.job.size, at_s=self.now.at_s)
        return None if found is None else self._of_mpi(rank, found, spins=True)

    def _of_mpi(self, rank: int, found: Operation, *, spins: bool) -> SeenWait:
        placed = replace(found, frame=self._user_frame(rank), thread=self.job.pids[rank])
        return SeenWait(placed, spins=spins)

    def _by_native(
        self,
        rank: int,
        wait: SeenWait,
        label: str | None,
        native: Sequence[NativeThread] | None,
    ) -> SeenWait:
        """Return the wait in a runtime's native functions on the rank's stacks, else `wait`."""
        process = self.now.ranks.get(rank)
        if process is None or label not in _READ:
            return wait
        words = read_stack_words(process.pid, process.threads)
        main = next((each for each in words if each.thread == process.pid), None)
        is_inside = main is not None and main.is_in_runtime
        if native is None:
            others = [each for each in words if each is not main or is_inside]
            native = [NativeThread(e.thread, tuple(map(plain_name, e.symbols))) for e in others]
        found = operation_of(native, group=tuple(range(self.job.size)), at_s=self.now.at_s)
        polls = label in _POLLS and not is_inside
        if found is None or not (is_inside or polls):
            # A main thread outside the runtime waits for something else, such as a child process,
            # although its line contains ".wait(".
            is_of_others = main is not None and not is_inside
            kept = SeenWait(is_unclear=wait.is_unclear) if is_of_others else wait
            return replace(kept, is_unclear=kept.is_unclear or is_inside)
        symbols = next((each.symbols for each in native if each.thread == found.thread), ())
        is_of_xla = any(each.startswith(_XLA) for each in symbols)
        placed = self._placed(found, rank, wait, polls=polls, is_of_xla=is_of_xla)
        barrier = self._barrier(rank) if found.name == BARRIER and is_inside else None
        return with_barrier(SeenWait(placed, is_apart=is_of_xla), barrier, self._age_s(rank))

    def _age_s(self, rank: int) -> float:
        """Return for how long at most the main thread has waited: since its process began."""
        process = self.now.ranks.get(rank)
        main = process.main if process is not None else None
        return self.now.at_s - main.started_s if main is not None else math.inf

    def _with_end(self, rank: int, wait: SeenWait) -> SeenWait:
        """Return a wait with the time at which gloo aborts it, if a thread of gloo performs it."""
        process, found = self.now.ranks.get(rank), wait.operation
        if process is None or found is None or not wait.is_apart or found.name == BARRIER:
            return wait
        asked = [e for e in process.threads if e.call in FUTEXES or e.tid == found.thread]
        ends = {e.tid: e.ends_s for e in asked if e.ends_s is not None and e.ends_s != NEVER}
        asked = [e for e in asked if e.tid in ends or e.tid == found.thread]
        names = {
            each.thread: [plain_name(symbol) for symbol in each.symbols]
            for each in read_stack_words(process.pid, asked)
        }
        gloos = {
            tid: end - self.now.at_s
            for tid, end in ends.items()
            if waits_for_peer(names.get(tid, ()))
        }
        if found.thread in gloos:
            return replace(wait, ends_in_s=gloos[found.thread])
        is_of_service = any(each.startswith(SERVICE) for each in names.get(found.thread, ()))
        if found.source == "native-frames" or is_of_service:
            return wait
        return replace(wait, ends_in_s=min(gloos.values(), default=None))

    def _barrier(self, rank: int) -> Barrier | None:
        """Return the barrier of jax's coordination service that the main thread waits at."""
        main = self._main(rank)
        if main is None or not main.frames or not main.values:
            return None
        innermost, root = main.frames[0], root_of(self.job.pids[rank])
        path = path_below(root, innermost.file) if root else innermost.file
        lines = self.context.lines_of(path) if path else ()
        return barrier_of_call(lines, innermost.line, main.values[0])

    def _placed(
        self, found: Operation, rank: int, wait: SeenWait, *, polls: bool, is_of_xla: bool
    ) -> Operation:
        """Return an operation at the user's line; no thread waits in a polled operation.

        jax's main thread wakes up while it waits; the thread that is in the collective does not.
        """
        main = self._main(rank)
        is_ddps = main is not None and is_in_ddp(main.frames)
        is_of_all = (is_ddps or is_of_xla) and found.name not in UNNAMED
        return replace(
            as_of_probably_all(found) if is_of_all else as_of_some(found),
            thread=found.thread if polls or is_of_xla else self.job.pids[rank],
            waited_s=None if polls else found.waited_s,
            frame=wait.operation.frame if wait.operation is not None else self._user_frame(rank),
        )
