"""Reads a job whose ranks are on several machines: one process per machine reads, the first judges.

Each machine has its own clock and process ids; `merge_snapshots` unifies them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_multihost.core.launch.kernel_identity import kernel_identity
from pytest_multihost.core.launch.meeting import Companion
from pytest_multihost.core.model.errors import LaunchError, MultihostError
from pytest_multihost.core.model.foreign_bytes import UnreadableError
from pytest_multihost.core.model.json_values import from_json, to_json
from pytest_multihost.core.model.messages import (
    Answered,
    Ask,
    Failed,
    FromPeer,
    SnapshotTaken,
    TakeSnapshot,
    ToPeer,
)
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.setting_values import MAX_RANKS
from pytest_multihost.core.watch.kernel.merged_snapshot import RemoteSnapshot, merge_snapshots
from pytest_multihost.extensions.live.processes import Job
from pytest_multihost.extensions.live.reader import JobReader, Stacks
from pytest_multihost.extensions.live.waits import SeenWait

_SNAPSHOT_S = 30.0
_STACKS_S = 180.0
"""How long a process may take to answer: a machine with a hanging job may be busy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The part of the job on one machine.

    Attributes:
        job: The ranks on this machine; None if there are none.
        kernel: Identifies the machine's table of processes; empty if unknown.
    """

    host: str
    job: Job | None
    why: str = ""
    kernel: tuple[str, ...] = ()

    def is_seen_by(self, other: Machine) -> bool:
        """Return whether another process on the same machine has found the same ranks."""
        if self.job is None or other.job is None or self.kernel != other.kernel:
            return False
        return self.job.pids == other.job.pids


@dataclass(frozen=True, slots=True)
class Described:
    """The answer of one machine: a job, or why there is none."""

    job: Job | None
    why: str = ""


def this_machine(job: Job | None, why: str) -> Machine:
    """Return this machine with its job, or with why it has none."""
    return Machine(socket.gethostname(), job, why, kernel_identity())


def machine_of(peer: Companion) -> Machine:
    """Ask a companion for its machine's part of the job.

    Raises:
        LaunchError: The companion is gone, or cannot take part.
    """
    if peer.hello.problems:
        raise LaunchError(f"{peer.name} cannot take part", seen="\n".join(peer.hello.problems))
    peer.measure_clock()
    found, _ = peer.request(Ask("job"), Answered, within_s=_SNAPSHOT_S)()
    with peer.reading("the job that it has found"):
        described = from_json(Described, found.answer)
        job = described.job
        if job is not None and not all(0 <= each < MAX_RANKS for each in (job.size, *job.pids)):
            raise UnreadableError(f"a rank is not between 0 and {MAX_RANKS - 1}")
    return Machine(peer.hello.host, described.job, described.why, peer.hello.kernel)


def joined_job(machines: Sequence[Machine]) -> Job:
    """Return the one job whose ranks were found on several machines.

    Raises:
        MultihostError: There are no ranks, or they belong to different jobs.
    """
    found = [(each.host, each.job) for each in machines if each.job is not None]
    absent = tuple(f"no ranks on {each.host}: {each.why}" for each in machines if each.job is None)
    if not found:
        raise MultihostError("no machine has ranks of the job", seen="\n".join(absent))
    ranks = [rank for _, job in found for rank in job.pids]
    kinds = {(job.launcher, job.size if job.is_size_known else 0) for _, job in found}
    if len(kinds) > 1 or len({*ranks}) < len(ranks):
        seen = [f"{host}: {PLAIN.of(j.pids)} of {j.size}, by {j.launcher}" for host, j in found]
        raise MultihostError(
            "the processes on these machines are not those of one job",
            seen="\n".join(seen),
            remedy="Say on each machine which one: multihost attach --match TEXT, or 0=PID 1=PID.",
        )
    pids = {rank: pid for _, job in found for rank, pid in job.pids.items()}
    notes = (note for _, job in found for note in job.notes)
    return Job(
        pids=dict(sorted(pids.items())),
        size=max(job.size for _, job in found),
        launcher=found[0][1].launcher,
        is_size_known=found[0][1].is_size_known,
        ended=frozenset(rank for _, job in found for rank in job.ended if rank not in pids),
        notes=(*notes, *absent),
        hosts={rank: host for host, job in found for rank in job.pids},
    )


@dataclass(frozen=True, slots=True)
class JoinedReader:
    """Reads ranks here and on other machines; a `JobReader`.

    Attributes:
        peers: The processes that read the others.
    """

    local: JobReader
    peers: Sequence[Companion]

    def shallow_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of the main threads."""
        return self._snapshot(self.local.shallow_snapshot, is_deep=False)

    def deep_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of all threads and file descriptors."""
        return self._snapshot(self.local.deep_snapshot, is_deep=True)

    def _snapshot(self, take: Callable[[], KernelSnapshot], *, is_deep: bool) -> KernelSnapshot:
        message = TakeSnapshot(is_deep)
        waits = [each.request(message, SnapshotTaken, within_s=_SNAPSHOT_S) for each in self.peers]
        local = take()
        return self._merged(local, [wait()[0].snapshot for wait in waits])

    def _merged(self, local: KernelSnapshot, others: Sequence[KernelSnapshot]) -> KernelSnapshot:
        pairs = enumerate(zip(self.peers, others, strict=True), 1)
        return merge_snapshots(
            local,
            [RemoteSnapshot(n, seen, p.offset_s, p.uncertainty_s) for n, (p, seen) in pairs],
            PLAIN,
        )

    def read_stacks(self, *, reads_native: bool) -> Stacks:
        """Return the facts in the stacks, read on all machines at the same time.

        Args:
            reads_native: Whether threads may be stopped for a moment to read native frames.
        """
        message = Ask("stacks", {"reads_native": reads_native})
        waits = [each.request(message, Answered, within_s=_STACKS_S) for each in self.peers]
        local = self.local.read_stacks(reads_native=reads_native)
        others = [_stacks(peer, wait()[0]) for peer, wait in zip(self.peers, waits, strict=True)]
        at_s = local.now.at_s
        parts = [local, *others]
        return Stacks(
            now=self._merged(local.now, [each.now for each in others]),
            waits={rank: _at(wait, at_s) for each in parts for rank, wait in each.waits.items()},
            dumps=tuple(sorted((d for e in parts for d in e.dumps), key=lambda dump: dump.rank)),
            gil_holders=frozenset(rank for each in parts for rank in each.gil_holders),
            unread={rank: why for each in parts for rank, why in each.unread.items()},
            unobserved=tuple(text for each in parts for text in each.unobserved),
            native={rank: found for each in parts for rank, found in each.native.items()},
            lines=tuple(line for each in parts for line in each.lines),
            left=tuple(text for each in parts for text in each.left),
            are_parents_busy=any(each.are_parents_busy for each in parts),
        )

    def turns(self, idle: Collection[int]) -> Mapping[int, int] | None:
        """Return None: several machines cannot be asked at one instant."""
        del idle
        return None


def _at(wait: SeenWait, at_s: float) -> SeenWait:
    """Return a wait as if seen at a time on this machine's clock."""
    found = wait.operation
    if found is None:
        return wait
    waited_s = None if found.waited_s is None else at_s
    return replace(wait, operation=replace(found, since_s=at_s, waited_s=waited_s))


def _stacks(peer: Companion, found: Answered) -> Stacks:
    with peer.reading("the stacks of its ranks"):
        return from_json(Stacks, found.answer)


def answer(message: ToPeer, machine: Machine, reader: JobReader | None) -> FromPeer:
    """Return this machine's answer to a request from rank 0's process.

    Args:
        reader: None if the ranks here may not be read.
    """
    match message:
        case Ask("job"):
            return Answered(to_json(Described(machine.job, machine.why)))
        case TakeSnapshot(is_deep) if reader is not None:
            return SnapshotTaken(reader.deep_snapshot() if is_deep else reader.shallow_snapshot())
        case Ask("stacks", details) if reader is not None and details is not None:
            stacks = reader.read_stacks(reads_native=bool(details["reads_native"]))
            return Answered(to_json(stacks))
    return Failed(f"{type(message).__name__} is not a request for this process")
