"""Takes two snapshots of a running job, reads stacks in between, and reports the possible moves.

A rank that computes, or whose child computes, may only be late: a hang is not visible.
The same holds for a rank that sleeps for some seconds, or that reads data that a process outside
the job may write.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.core.blame.socket_waits import waits_at_sockets
from pytest_multihost.core.model.operation import Operation, Operations, group_by_value
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.result import Activity, RankSnapshot
from pytest_multihost.core.model.stack import Dump, ThreadStack
from pytest_multihost.core.proof import (
    FileLockHolders,
    ProofState,
    Snapshot,
    lock_holders,
    main_labels,
    with_lock_holders,
)
from pytest_multihost.core.proof.blockers import rank_blockers
from pytest_multihost.core.watch.kernel import SharedObjects
from pytest_multihost.core.watch.shared_waits import shared_waits, with_shared_wait
from pytest_multihost.extensions.live.gloo_groups import with_gloo_members
from pytest_multihost.extensions.live.groups import with_unlike_groups
from pytest_multihost.extensions.live.processes import Job
from pytest_multihost.extensions.live.reader import JobReader, Stacks, UserLine
from pytest_multihost.extensions.live.waits import SeenWait

HORIZON_S = 60.0
"""A rank is not reported as hung while it waits for a timer that expires within this time."""


def motions(before: Snapshot, now: Snapshot) -> Mapping[int, str]:
    """Return why ranks may still move, one sentence each; ranks that rest have no entry."""
    found = rank_blockers(before, now, deadline_s=now.kernel.at_s + HORIZON_S)
    return {rank: each[0] for rank, each in found.items() if each}


def resting_threads(before: KernelSnapshot, now: KernelSnapshot) -> frozenset[tuple[int, int]]:
    """Return rank and native id of the threads that have not run between two snapshots."""
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
    """Return the ranks with a thread that waits in an operation and has run meanwhile."""
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
"""Upper bound for further snapshots, a second apart; they stop when no proof is in reach."""

_LATER_S = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """The facts that two snapshots and the stacks show about a job.

    Attributes:
        dumps: The stacks that could be read.
        lines: The user's lines on these stacks.
        unread: By rank, why its stacks could not be read.
        unclear: Ranks that may wait in an operation that was not seen.
        limited: By rank, the operation that its runtime may abort soon, or at a time that cannot be
            seen, one sentence each.
        apart: Ranks that wait for a thread of the runtime that performs an operation.
        unobserved: Other things that could not be read, one sentence each.
        moving: By rank, why it may still move by itself.
        left_behind: The remains of a killed process that ranks wait for, one sentence each.
        left: Ranks with a thread that was in an operation and has run between the snapshots.
        blockers: Why it is not proven that nothing can move, one sentence each.
        is_proven: Whether it is proven that nothing can move.
        waits: By rank that waits in an operation, the identity of this wait; a rank that spins has
            none.
        spinning: Ranks that use the processor while they wait in an operation.
        may_be_ended: Whether something else may end a rank as planned: its parent is at work, or
            the rank has a handler for SIGTERM.
    """

    at_s: float
    ranks: tuple[RankSnapshot, ...]
    dumps: tuple[Dump, ...]
    lines: tuple[UserLine, ...]
    unread: Mapping[int, str]
    unclear: frozenset[int]
    limited: Mapping[int, str] = field(default_factory=dict)
    apart: frozenset[int] = frozenset()
    unobserved: tuple[str, ...] = ()
    moving: Mapping[int, str] = field(default_factory=dict)
    left_behind: tuple[str, ...] = ()
    left: frozenset[int] = frozenset()
    blockers: tuple[str, ...] = ()
    is_proven: bool = False
    waits: Mapping[int, tuple[object, ...]] = field(default_factory=dict)
    spinning: frozenset[int] = frozenset()
    may_be_ended: bool = False


def look_at(job: Job, reader: JobReader, *, reads_native: bool = False) -> Look:
    """Take two snapshots of a job, half a second apart, and more while they may end in a proof.

    Args:
        reads_native: Whether threads may be stopped for a moment to read native frames.
    """
    before = reader.deep_snapshot()
    stacks = reader.read_stacks(reads_native=reads_native)
    now = stacks.now
    living = [each.rank for each in now.ranks.values() if not each.is_dead]
    waits = with_unlike_groups(stacks.waits, [rank for rank in living if rank is not None])
    waits = with_gloo_members(waits, now)
    at_sockets = without_servers(waits_at_sockets(now), stacks.dumps)
    by_frames = [
        _with_wait(each, waits.get(each.rank, SeenWait()).operation)
        for each in _ranks(job, before, stacks)
    ]
    # Whether a wait at a socket may end is judged by the socket: any process may connect to a
    # listener.
    operations = tuple(map(_as_entered, by_frames))
    ranks = tuple(
        each if each.operations else _with_wait(each, at_sockets.get(each.rank))
        for each in by_frames
    )
    ranks = tuple(_with_shared_waits(ranks, now))
    state = _proof(reader, before, now, operations, stacks.in_turns)
    ending = {
        rank: (each.operation.name, _end(each.ends_in_s))
        for rank, each in waits.items()
        if each.operation is not None and each.is_apart and (each.ends_in_s or 0.0) <= HORIZON_S
    }
    limited = {rank: _gives_up([rank], *each) for rank, each in ending.items()}
    alike = group_by_value((each, rank) for rank, each in ending.items())
    served = (*_served_by_launcher(now, waits), *_acting_for_ended(job))
    spinning = frozenset(rank for rank, each in waits.items() if each.spins)
    return Look(
        at_s=now.at_s,
        ranks=ranks,
        dumps=stacks.dumps,
        lines=stacks.lines,
        unread=stacks.unread,
        unclear=frozenset(rank for rank, each in waits.items() if each.is_unclear),
        limited=limited,
        apart=frozenset(r for r, e in waits.items() if _wakes_inside(e, job.pids.get(r, 0))),
        unobserved=stacks.unobserved,
        left_behind=stacks.left,
        moving=motions(
            Snapshot(before, operations, in_turns=stacks.in_turns),
            Snapshot(now, operations, in_turns=stacks.in_turns),
        ),
        left=moved_ranks(now, operations, resting_threads(before, now)) - spinning,
        blockers=(
            *state.blockers,
            *(_gives_up(ranks, *each) for each, ranks in alike.items()),
            *served,
        ),
        is_proven=state.is_proof and not limited and not served,
        waits=_waits(now, operations, spinning),
        spinning=spinning,
        may_be_ended=not job.within and (stacks.are_parents_busy or _handles_end(now)),
    )


_SERVERS = (("socketserver.py", "BaseServer.serve_forever"), ("base_events.py", "run_forever"))
"""File and end of the name of each function that accepts connections while others are served."""


def without_servers(
    waits: Mapping[int, Operation], dumps: Iterable[Dump]
) -> Mapping[int, Operation]:
    """Return the waits at sockets, without those for a client that some other client waits for.

    The loop of a server accepts any client. It does not wait for a rank that has not come while
    a connected one waits for its answer.
    """
    asked = {each.peer for each in waits.values() if each.kind == "transfer"}
    serving = {each.rank for each in dumps if any(map(_is_server_loop, each.threads))}
    return {
        rank: each
        for rank, each in waits.items()
        if each.kind != "wait" or rank not in asked & serving
    }


def _is_server_loop(thread: ThreadStack) -> bool:
    return any(
        frame.file.endswith(file) and frame.function.endswith(function)
        for frame in thread.frames
        for file, function in _SERVERS
    )


def _with_shared_waits(
    ranks: Sequence[RankSnapshot], now: KernelSnapshot
) -> Iterator[RankSnapshot]:
    """Yield the ranks, with waits for shared objects if nothing else is known."""
    unknown = [e.rank for e in ranks if not (e.operations or e.lock_holders or e.holds_gil)]
    objects = SharedObjects([each.pid for each in now.processes])
    found = shared_waits(now, objects, asked=unknown, names=PLAIN)
    for each in ranks:
        process = now.ranks.get(each.rank)
        wait = found.get(each.rank)
        yield each if process is None else with_shared_wait(each, wait, process, now.at_s)


_SIGTERM = 1 << 14  # signal 15; bit 0 is signal 1


def _handles_end(now: KernelSnapshot) -> bool:
    return any(each.caught & _SIGTERM for each in now.ranks.values())


def _waits(
    now: KernelSnapshot, operations: Iterable[Operations], spinning: Collection[int]
) -> Mapping[int, tuple[object, ...]]:
    """Return the identity of each rank's wait in an operation, except spinning ranks."""
    keys = {(rank, e.tid): e.wait_key for rank, each in now.ranks.items() for e in each.threads}
    return {
        each.rank: keys[each.rank, one.thread]
        for each in operations
        for one in each.recent
        if one.waited_s is not None and (each.rank, one.thread) in keys
        if each.rank not in spinning
    }


def _gives_up(ranks: Sequence[int], name: str, end: str) -> str:
    return f"{name} on {PLAIN.of(ranks)} may time out{end}"


def _end(ends_in_s: float | None) -> str:
    """Return the end of a sentence about an operation that may time out."""
    if ends_in_s is None:
        return "; its timeout cannot be read from outside"
    return f" within {max(ends_in_s, 0.0):.0f} s"


def _wakes_inside(wait: SeenWait, main: int) -> bool:
    """Return whether a main thread may wake up while it waits for the thread of its operation.

    A main thread that waits for something else, such as another thread of Python, is not inside.
    """
    found = wait.operation
    is_inside = found is not None and (found.source == "native-frames" or found.thread == main)
    return wait.is_apart and is_inside


def _served_by_launcher(now: KernelSnapshot, waits: Mapping[int, SeenWait]) -> Iterator[str]:
    """Yield which ranks wait for a key of their launcher's store: another process may set it.

    A rank that waits at a socket is served by its other end, else by any that it has open.
    """
    for rank, each in waits.items():
        process, found = now.ranks.get(rank), each.operation
        if process is None or found is None or found.kind != "wait":
            continue
        fds = next((e.fds for e in process.threads if e.tid == found.thread), None)
        served = [process.descriptors[fd] for fd in fds or () if fd in process.descriptors]
        served = served or [*process.descriptors.values()]
        if any(fd.where == "harness" for fd in served):
            yield (
                f"rank {rank} waits in {found.name} for a key that its launcher's store"
                " may still get"
            )


def _acting_for_ended(job: Job) -> Iterator[str]:
    """Yield which processes may go on as a rank that has ended."""
    for pid in job.strays if job.ended else ():
        yield f"process {pid}, whose parent has ended, may go on as {PLAIN.of(job.ended)}"


_NOT_HERE = Activity("not seen")


def _ranks(job: Job, before: KernelSnapshot, stacks: Stacks) -> Iterator[RankSnapshot]:
    labels, locks = main_labels(before, stacks.now), lock_holders(stacks.now)
    for rank in range(job.size):
        label, activity = labels.get(rank, (None, None if rank in job.pids else _NOT_HERE))
        is_asleep = label not in {"RUNNING", "EXITED", None}
        seen = RankSnapshot(
            rank=rank,
            label=label,
            activity=activity,
            holds_gil=rank in stacks.gil_holders and is_asleep,
            native=stacks.native.get(rank, ()),
        )
        yield with_lock_holders(seen, locks.get(rank, FileLockHolders()), PLAIN)


def _with_wait(seen: RankSnapshot, found: Operation | None) -> RankSnapshot:
    is_known = bool(seen.lock_holders) or seen.holds_gil
    return seen if found is None or is_known else replace(seen, operations=(found,))


def _proof(
    reader: JobReader,
    before: KernelSnapshot,
    now: KernelSnapshot,
    operations: tuple[Operations, ...],
    in_turns: Mapping[int, float],
) -> ProofState:
    """Return how far it is proven that nothing in the job can move within `HORIZON_S`."""
    first = Snapshot(before, operations, in_turns=in_turns)
    state = ProofState().after(first, deadline_s=now.at_s + HORIZON_S)
    for _ in range(_LOOKS):
        snapshot = Snapshot(now, _unmoved(operations, before, now), in_turns=in_turns)
        deadline_s = now.at_s + HORIZON_S
        state = state.after(snapshot, deadline_s=deadline_s, ask_turns=reader.turns)
        # On a busy machine a thread that polls may look as if it computed.
        if state.is_proof or (state.blockers and not state.is_likely(deadline_s)):
            break
        time.sleep(_LATER_S)
        now = reader.deep_snapshot()
    return state


def _as_entered(seen: RankSnapshot) -> Operations:
    """Return a rank's operations as the first call of their groups.

    Frames do not number calls. With one number for all, another rank either is in the same call or
    has not entered it.
    """
    numbered = tuple(replace(each, sequence=1) for each in seen.operations)
    entered = {each.group_key: 1 for each in numbered if each.kind == "collective"}
    return Operations(seen.rank, numbered, entered)


def _unmoved(
    operations: Sequence[Operations], before: KernelSnapshot, now: KernelSnapshot
) -> tuple[Operations, ...]:
    """Return the operations whose threads have not run since the first snapshot.

    A thread that has run may have entered the next call meanwhile: frames do not number calls.
    """
    resting = resting_threads(before, now)
    return tuple(
        replace(each, recent=tuple(o for o in each.recent if (each.rank, o.thread) in resting))
        for each in operations
    )
