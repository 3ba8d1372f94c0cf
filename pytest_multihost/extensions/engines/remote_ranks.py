"""How the watchdog sees ranks on other machines: the peers there take snapshots and send them.

Slot pages are copied beside those of local ranks, with times converted to the controller's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_multihost.core.launch import RemotePart
from pytest_multihost.core.model.messages import TakeSnapshot
from pytest_multihost.core.model.operation import group_by_value, rank_set
from pytest_multihost.core.model.process import Descriptor, KernelSnapshot, Process
from pytest_multihost.core.slots import shift_times
from pytest_multihost.core.watch.kernel import HarnessProcesses, KernelReader, ProcReader

# One snapshot of processes on several machines.
#
# Each machine has process ids and a clock of its own. Remote ids are mapped to numbers that no
# local process has, and times to the controller's clock. A connection to another machine leads to a
# rank if that rank's machine shows the other end.


_FOREIGN = 1 << 32
"""Machine n's process ids are offset by n times this; Linux assigns no larger ids."""


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """A snapshot that was taken by a peer.

    Attributes:
        number: 1, 2, ...: distinguishes its process ids from all others.
        snapshot: The peer's snapshot.
        offset_s: Offset from its clock to the controller's.
        slack_s: Error bound of `offset_s`.
    """

    number: int
    snapshot: KernelSnapshot
    offset_s: float = 0.0
    slack_s: float = 0.0


def merge_snapshots(local: KernelSnapshot, others: Sequence[RemoteSnapshot]) -> KernelSnapshot:
    """Return one snapshot of all processes of the world: ranks in order, then their children."""
    found = [_moved(process, each) for each in others for process in each.snapshot.processes]
    ordered = sorted(
        (*local.processes, *found), key=lambda each: (not each.is_rank, each.rank or 0)
    )
    is_deep = local.is_deep and all(each.snapshot.is_deep for each in others)
    return KernelSnapshot(at_s=local.at_s, processes=_connected(ordered), is_deep=is_deep)


def _moved(process: Process, where: RemoteSnapshot) -> Process:
    """Return a remote process with unique ids, and times on the controller's clock."""
    base = where.number * _FOREIGN
    threads = tuple(
        replace(
            each,
            started_s=each.started_s + where.offset_s,
            ends_s=_earliest(each.ends_s, where),
            child=each.child + base if each.child > 0 else each.child,
            holders=None if each.holders is None else tuple(pid + base for pid in each.holders),
        )
        for each in process.threads
    )
    descriptors = {
        fd: replace(
            each,
            ends_s=_earliest(each.ends_s, where),
            pid=each.pid + base if each.pid > 0 else each.pid,
        )
        for fd, each in process.descriptors.items()
    }
    return replace(process, pid=process.pid + base, threads=threads, descriptors=descriptors)


def _earliest(ends_s: float | None, where: RemoteSnapshot) -> float | None:
    """Return the earliest time on the controller's clock for a remote end time."""
    if ends_s is None or math.isinf(ends_s):
        return ends_s
    return ends_s + where.offset_s - where.slack_s


def _connected(processes: Sequence[Process]) -> tuple[Process, ...]:
    """Return processes with connections between machines resolved."""
    owners = {
        each.endpoints: process
        for process in processes
        for each in process.descriptors.values()
        if each.kind == "tcp" and each.endpoints
    }
    return tuple(
        replace(
            process,
            descriptors={
                fd: _connect(each, owners.get(each.endpoints[::-1]))
                for fd, each in process.descriptors.items()
            },
        )
        for process in processes
    )


def _connect(found: Descriptor, other: Process | None) -> Descriptor:
    """Return a descriptor, with the process of the world that it leads to, if any.

    Not while data is in flight: what the other side has not acknowledged may yet arrive.
    """
    if found.kind != "tcp" or found.where != "outside" or other is None or found.queues[1]:
        return found
    who = "orphan" if other.rank is None else f"rank {other.rank}"
    return replace(found, where="inside", peer=f"{found.peer} ({who})")


@dataclass(slots=True)
class RemoteRanks:
    """Ranks on other machines: their processes and files cannot be read from here.

    Attributes:
        parts: The ranks of each peer.
        scratch: The world's directory, where copies of slot pages go.
        shallow: The last shallow snapshots.
    """

    parts: Sequence[RemotePart]
    scratch: Path
    shallow: list[RemoteSnapshot] = field(default_factory=list)

    @property
    def ranks(self) -> frozenset[int]:
        """Their indices. Their process ids mean nothing on this machine."""
        return frozenset(rank for each in self.parts for rank in each.ranks)

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats for the report: who observed them, and by which clock."""
        notes = []
        for host, parts in group_by_value((each.host, each) for each in self.parts).items():
            error_s = max(part.clock[1] for part in parts)
            clock = f"on a clock known to {error_s * 1e3:.2g} ms" if error_s else "on our clock"
            ranks = rank_set(rank for part in parts for rank in part.ranks)
            notes.append(
                f"{ranks} on {host}: seen by the process there, {clock}, without native frames"
            )
        return tuple(notes)

    def refresh(self) -> None:
        """Fetch their slot pages and their part of a shallow snapshot.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        self.shallow = self.take(is_deep=False)

    def take(self, *, is_deep: bool) -> list[RemoteSnapshot]:
        """Return a new snapshot of every peer, and copy the slot pages.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        waits = [part.begin_snapshot(TakeSnapshot(is_deep)) for part in self.parts]
        found = []
        for number, (part, wait) in enumerate(zip(self.parts, waits, strict=True), 1):
            snapshot, pages = wait()
            offset_s, uncertainty_s = part.clock
            for name, data in pages.items():
                (self.scratch / name).write_bytes(shift_times(data, round(offset_s * 1e9)))
            found.append(RemoteSnapshot(number, snapshot, offset_s, uncertainty_s))
        return found

    def reader(self, pids: Mapping[int, int], harness: HarnessProcesses) -> KernelReader:
        """Return the reader of the processes of all ranks, local and remote."""
        here = {rank: pid for rank, pid in pids.items() if rank not in self.ranks}
        return _MergingReader(ProcReader(here, harness), self)


@dataclass(frozen=True, slots=True)
class _MergingReader:
    """Takes snapshots of all processes of a world, local and remote."""

    local: ProcReader
    remote: RemoteRanks

    def shallow_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of the main threads of all ranks."""
        return merge_snapshots(self.local.shallow_snapshot(), self.remote.shallow)

    def deep_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of all threads and descriptors."""
        remote = self.remote.take(is_deep=True)
        return merge_snapshots(self.local.deep_snapshot(), remote)
