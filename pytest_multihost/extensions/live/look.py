"""Two looks at the ranks of a running job, and their stacks in between."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.core.blame.socket_waits import waits_at_sockets
from pytest_multihost.core.model.operation import Operation, Operations
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.result import RankSnapshot
from pytest_multihost.core.model.stack import Dump
from pytest_multihost.core.proof import ProofState, Snapshot
from pytest_multihost.core.proof.blockers import rank_blockers
from pytest_multihost.core.proof.threads import lock_holders, main_labels
from pytest_multihost.extensions.live.processes import Job
from pytest_multihost.extensions.live.reader import JobReader, Line, Stacks
from pytest_multihost.extensions.live.waits import SeenWait

# Why a rank may still go on: what was seen to move, timers that strike soon, waits for others.
#
# A rank that computes, or whose child does, is late and does not hang as far as anybody can tell.
# So is one that sleeps for some seconds, or reads what a process outside of the job may write.


HORIZON_S = 60.0
"""Who waits for a timer that strikes within this time is not said to hang."""


def motions(before: Snapshot, now: Snapshot) -> Mapping[int, str]:
    """Return why ranks may go on, as a sentence; nothing of those that stand still."""
    found = rank_blockers(before, now, deadline_s=now.kernel.at_s + HORIZON_S)
    return {rank: each[0] for rank, each in found.items() if each}


def resting_threads(before: KernelSnapshot, now: KernelSnapshot) -> frozenset[tuple[int, int]]:
    """Return rank and native id of the threads that have not run between two looks."""
    keys = {
        (process.pid, each.wait_key) for process in before.processes for each in process.threads
    }
    return frozenset(
        (process.rank, each.tid)
        for process in now.processes
        for each in process.threads
        if process.rank is not None and (process.pid, each.wait_key) in keys
    )


def moved_ranks(
    now: KernelSnapshot,
    operations: Iterable[Operations],
    resting: Collection[tuple[int, int]],
) -> frozenset[int]:
    """Return the ranks that wait in an operation in a thread that is not among the resting ones."""
    waiting = {
        (each.rank, one.thread)
        for each in operations
        for one in each.recent
        if one.waited_s is not None
    }
    return frozenset(
        rank
        for rank, process in now.ranks.items()
        for each in process.threads
        if (rank, each.tid) in waiting and (rank, each.tid) not in resting
    )


_LOOKS = 3
"""More looks are taken, a second apart, only while they may end in a proof."""

_LATER_S = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a job.

    Attributes:
        at_s: When, on the monotonic clock.
        ranks: Its ranks, with the operations that they are in.
        dumps: The stacks of those that could be read.
        lines: The user's lines on them.
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
    lines: tuple[Line, ...]
    unread: Mapping[int, str]
    unclear: frozenset[int]
    limited: Mapping[int, str] = field(default_factory=dict)
    unobserved: tuple[str, ...] = ()
    moving: Mapping[int, str] = field(default_factory=dict)
    left: frozenset[int] = frozenset()
    blockers: tuple[str, ...] = ()
    is_proven: bool = False


def look_at(job: Job, reader: JobReader, *, reads_native: bool = False) -> Look:
    """Look at a job twice, half a second apart, and more often if that may end in a proof.

    Args:
        job: Its ranks that can be seen.
        reader: Reads them.
        reads_native: Whether its threads may be stopped for a moment, to read native frames.
    """
    before = reader.deep_snapshot()
    stacks = reader.read_stacks(reads_native=reads_native)
    now, waits = stacks.now, stacks.waits
    at_sockets = waits_at_sockets(now)
    ranks = tuple(
        _with_wait(each, waits.get(each.rank, SeenWait()).operation or at_sockets.get(each.rank))
        for each in _ranks(job, before, stacks)
    )
    operations = tuple(map(_as_entered, ranks))
    state = _proof(reader, before, now, operations)
    limited = {
        rank: f"rank {rank} may give up {each.operation.name}, whose limit cannot be seen"
        for rank, each in waits.items()
        if each.operation is not None and each.has_hidden_limit
    }
    return Look(
        at_s=now.at_s,
        ranks=ranks,
        dumps=stacks.dumps,
        lines=stacks.lines,
        unread=stacks.unread,
        unclear=frozenset(rank for rank, each in waits.items() if each.is_unclear),
        limited=limited,
        unobserved=stacks.unobserved,
        moving=motions(Snapshot(before, operations), Snapshot(now, operations)),
        left=moved_ranks(now, operations, resting_threads(before, now)),
        blockers=(*state.blockers, *limited.values()),
        is_proven=state.is_proof and not limited,
    )


def _ranks(job: Job, before: KernelSnapshot, stacks: Stacks) -> Iterator[RankSnapshot]:
    labels, locks = main_labels(before, stacks.now), lock_holders(stacks.now)
    for rank in range(job.size):
        label, activity = labels.get(rank, (None, None))
        is_asleep = label not in {"RUNNING", "EXITED", None}
        yield RankSnapshot(
            rank=rank,
            label=label,
            activity=activity,
            lock_holders=locks.get(rank, ()),
            holds_gil=rank in stacks.gil_holders and is_asleep,
            native=stacks.native.get(rank, ()),
        )


def _with_wait(seen: RankSnapshot, found: Operation | None) -> RankSnapshot:
    is_told = bool(seen.lock_holders) or seen.holds_gil
    return seen if found is None or is_told else replace(seen, operations=(found,))


def _proof(
    reader: JobReader,
    before: KernelSnapshot,
    now: KernelSnapshot,
    operations: tuple[Operations, ...],
) -> ProofState:
    """Return how far it is proven that nothing in the job can move for a while."""
    state = ProofState().after(Snapshot(before, operations), deadline_s=now.at_s + HORIZON_S)
    for _ in range(_LOOKS):
        snapshot = Snapshot(now, _unmoved(operations, before, now))
        deadline_s = now.at_s + HORIZON_S
        state = state.after(snapshot, deadline_s=deadline_s, ask_turns=reader.turns)
        # On a machine with much else to do a thread that polls may look as if it computed.
        if state.is_proof or (state.blockers and not state.is_likely(deadline_s)):
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
        replace(each, recent=tuple(o for o in each.recent if (each.rank, o.thread) in resting))
        for each in operations
    )
