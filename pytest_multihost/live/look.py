"""Two looks at the ranks of a running job, and their stacks in between."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.blame.inferred import operation_of, plain_name, waits_at_sockets
from pytest_multihost.live.motion import HORIZON_S, motions, moved_ranks, resting_threads
from pytest_multihost.live.processes import Job
from pytest_multihost.live.waits import SeenWait, as_of_some, seen_operation, seen_wait
from pytest_multihost.model.operation import Operation, Operations
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.model.result import RankSnapshot
from pytest_multihost.model.stack import (
    Dump,
    Frame,
    NativeThread,
    SourceContext,
    innermost_user_frame,
)
from pytest_multihost.proof import ProofState, Snapshot
from pytest_multihost.proof.threads import lock_holders, main_labels
from pytest_multihost.watch.kernel import ProcReader, Quiescence
from pytest_multihost.watch.kernel.stack_words import read_stack_words
from pytest_multihost.watch.probes.native import native_threads
from pytest_multihost.watch.probes.pyspy import SpiedThread, dump_of, spied_threads

_APART_S = 0.5
"""Between two looks at what threads do: one that computes has used its processor meanwhile."""

_STOPPED_S = 2.0
"""The same of a rank that is stopped: a profiler lets it go on after a moment."""

_LOOKS = 3
"""More looks are taken, a second apart, only while they may end in a proof."""

_LATER_S = 1.0
_TRIES, _TRY_S = 5, 0.01

_BLOCKED = frozenset({"BLOCKED", "IO"})
_POLLS = frozenset({"SLEEPING", "RUNNING"})
"""Labels of who may look again and again whether work that it has launched is over."""

_READ = _POLLS | {"BLOCKED"}
_XLA = ("xla::", "tsl::", "jax::")
_GONE = frozenset({"EXITED", "STOPPED"})


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a job.

    Attributes:
        at_s: When, on the monotonic clock.
        ranks: Its ranks, with the operations that they are in.
        dumps: The stacks of those that could be read.
        unread: Of the others, why they could not.
        unclear: Ranks that may wait in an operation that was not seen.
        limited: What the runtimes of ranks may give up at a time that cannot be seen, one sentence
            for each of these ranks.
        unobserved: What else could not be read, one sentence each.
        moving: Why ranks may go on by themselves.
        left: Ranks whose thread in an operation has run between the looks.
        blockers: Why it is not proven that nothing can move, one sentence each.
        is_proven: Whether it is.
    """

    at_s: float
    ranks: tuple[RankSnapshot, ...]
    dumps: tuple[Dump, ...]
    unread: Mapping[int, str]
    unclear: frozenset[int]
    limited: Mapping[int, str] = field(default_factory=dict)
    unobserved: tuple[str, ...] = ()
    moving: Mapping[int, str] = field(default_factory=dict)
    left: frozenset[int] = frozenset()
    blockers: tuple[str, ...] = ()
    is_proven: bool = False


def look_at(job: Job, context: SourceContext, *, reads_native: bool = False) -> Look:
    """Look at a job twice, half a second apart, and more often if that may end in a proof.

    Args:
        job: Its ranks here.
        context: Reads lines of files.
        reads_native: Whether its threads may be stopped for a moment, to read native frames.
    """
    reader = ProcReader(job.pids)
    before = reader.deep_snapshot()
    threads, unread = spied_threads(job.pids)
    is_stopped = any(each.main and each.main.state in "Tt" for each in before.ranks.values())
    apart_s = _STOPPED_S if is_stopped else _APART_S
    time.sleep(max(0.0, apart_s - (time.monotonic() - before.at_s)))
    now = reader.deep_snapshot()
    seen = _Seen(job, before, now, threads)
    waits, unobserved = seen.waits(context, reads_native=reads_native)
    at_sockets = waits_at_sockets(now)
    ranks = tuple(
        _with_wait(each, waits.get(each.rank, SeenWait()).operation or at_sockets.get(each.rank))
        for each in _ranks(job, before, now, threads)
    )
    operations = tuple(map(_as_entered, ranks))
    state = _proof(job, reader, before, now, operations)
    waited = (each for rank in ranks for each in rank.operations if each.waited_s is not None)
    tids = {each.thread for each in waited}
    limited = {
        rank: f"rank {rank} may give up {each.operation.name}, whose limit cannot be seen"
        for rank, each in waits.items()
        if each.operation is not None and each.has_hidden_limit
    }
    return Look(
        at_s=now.at_s,
        ranks=ranks,
        dumps=tuple(dump_of(rank, each) for rank, each in threads.items()),
        unread=unread,
        unclear=frozenset(rank for rank, each in waits.items() if each.is_unclear),
        limited=limited,
        unobserved=unobserved,
        moving=motions(Snapshot(before, operations), Snapshot(now, operations)),
        left=moved_ranks(now, tids, resting_threads(before, now)),
        blockers=(*state.blockers, *limited.values()),
        is_proven=state.is_proof and not limited,
    )


def _ranks(
    job: Job,
    before: KernelSnapshot,
    now: KernelSnapshot,
    threads: Mapping[int, Sequence[SpiedThread]],
) -> Iterator[RankSnapshot]:
    labels, locks = main_labels(before, now), lock_holders(now)
    for rank in range(job.size):
        label, activity = labels.get(rank, (None, None))
        holds = any(each.is_main and each.holds_gil for each in threads.get(rank, ()))
        yield RankSnapshot(
            rank=rank,
            label=label,
            activity=activity,
            lock_holders=locks.get(rank, ()),
            holds_gil=holds and label not in {"RUNNING", "EXITED", None},
        )


def _with_wait(seen: RankSnapshot, found: Operation | None) -> RankSnapshot:
    is_told = bool(seen.lock_holders) or seen.holds_gil
    return seen if found is None or is_told else replace(seen, operations=(found,))


def _proof(
    job: Job,
    reader: ProcReader,
    before: KernelSnapshot,
    now: KernelSnapshot,
    operations: tuple[Operations, ...],
) -> ProofState:
    """Return how far it is proven that nothing in the job can move for a while."""
    quiescence = Quiescence(job.pids)

    def turns(idle: Collection[int]) -> Mapping[int, int] | None:
        for _ in range(_TRIES):
            found = quiescence.ask(idle)
            if found.is_quiescent:
                return found.turns
            time.sleep(_TRY_S)
        return None

    state = ProofState().after(Snapshot(before, operations), deadline_s=now.at_s + HORIZON_S)
    for _ in range(_LOOKS):
        snapshot = Snapshot(now, _unmoved(operations, before, now))
        deadline_s = now.at_s + HORIZON_S
        state = state.after(snapshot, deadline_s=deadline_s, ask_turns=turns)
        if state.is_proof or state.blockers:
            break
        time.sleep(_LATER_S)
        now = reader.deep_snapshot()
    return state


def _as_entered(seen: RankSnapshot) -> Operations:
    """Return what a rank is in, as its group's first call: others lack it, or are in it, too."""
    numbered = tuple(replace(each, sequence=1) for each in seen.operations)
    entered = {each.group_key: 1 for each in numbered if each.kind == "collective"}
    return Operations(seen.rank, numbered, entered)


def _unmoved(
    operations: Sequence[Operations], before: KernelSnapshot, now: KernelSnapshot
) -> tuple[Operations, ...]:
    """Return the operations whose threads have not run since the first look.

    Another thread may have entered the next one meanwhile: frames do not number them.
    """
    resting = resting_threads(before, now)
    return tuple(
        replace(each, recent=tuple(one for one in each.recent if one.thread in resting))
        for each in operations
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the operations of ranks are told from."""

    job: Job
    before: KernelSnapshot
    now: KernelSnapshot
    threads: Mapping[int, Sequence[SpiedThread]]

    def waits(
        self, context: SourceContext, *, reads_native: bool
    ) -> tuple[Mapping[int, SeenWait], tuple[str, ...]]:
        """Return what each rank waits in, and what could not be read."""
        labels = {rank: label for rank, (label, _) in main_labels(self.before, self.now).items()}
        found = {rank: self._by_frames(rank, labels.get(rank), context) for rank in self.job.pids}
        asked = [
            rank
            for rank, each in found.items()
            if (each.operation is None or each.operation.name == "work.wait")
            and labels.get(rank) not in _GONE
        ]
        unobserved: tuple[str, ...] = ()
        native: Mapping[int, Sequence[NativeThread]] = {}
        if reads_native and asked:
            stacks = native_threads({rank: self.job.pids[rank] for rank in asked})
            native, unobserved = stacks.threads, stacks.unobserved
        for rank in asked:
            found[rank] = self._by_native(rank, found[rank], labels.get(rank), native.get(rank))
        gone = {
            rank: replace(each, is_unclear=False)
            for rank, each in found.items()
            if labels.get(rank) in _GONE
        }
        return {**found, **gone}, unobserved

    def _main(self, rank: int) -> SpiedThread | None:
        return next((each for each in self.threads.get(rank, ()) if each.is_main), None)

    def _user_frame(self, rank: int) -> Frame | None:
        main = self._main(rank)
        return innermost_user_frame(main.frames) if main is not None else None

    def _by_frames(self, rank: int, label: str | None, context: SourceContext) -> SeenWait:
        """Return what Python's frames of the main thread show, or of one that it may wait for."""
        main, user = self._main(rank), self._user_frame(rank)
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
                return SeenWait(operation)
        return wait

    def _by_native(
        self,
        rank: int,
        wait: SeenWait,
        label: str | None,
        native: Sequence[NativeThread] | None,
    ) -> SeenWait:
        """Return what functions of a runtime on the rank's stacks show, else what is known."""
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
            is_of_others = main is not None and not is_inside  # as of a child: the line says "wait"
            kept = SeenWait(is_unclear=wait.is_unclear) if is_of_others else wait
            return replace(kept, is_unclear=kept.is_unclear or is_inside)
        symbols = next((each.symbols for each in native if each.thread == found.thread), ())
        is_of_xla = any(each.startswith(_XLA) for each in symbols)
        placed = self._placed(found, rank, wait, polls=polls)
        return SeenWait(placed, has_hidden_limit=is_of_xla)

    def _placed(self, found: Operation, rank: int, wait: SeenWait, *, polls: bool) -> Operation:
        """Return an operation at the user's line; of one that is only polled for, nobody waits."""
        return replace(
            as_of_some(found),
            thread=found.thread if polls else self.job.pids[rank],
            waited_s=None if polls else found.waited_s,
            frame=wait.operation.frame if wait.operation is not None else self._user_frame(rank),
        )
