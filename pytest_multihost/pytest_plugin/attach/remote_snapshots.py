"""How the watchdog sees ranks on other machines: the peers there take snapshots and send them.

Slot pages are copied beside those of local ranks, with times converted to the controller's clock.

Each machine has process ids, inodes and a clock of its own. Remote ids are mapped to numbers that
no local process has, and times to the controller's clock. A connection to another machine leads to
a rank if that rank's machine shows the other end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_multihost.launch import RemotePart
from pytest_multihost.launch.attach.handshake import kernel_identity
from pytest_multihost.model.operation import rank_set
from pytest_multihost.model.process import Descriptor, KernelSnapshot, Process
from pytest_multihost.slots import shift_times
from pytest_multihost.watch import RemoteRanks, Watchdog
from pytest_multihost.watch.kernel import HarnessProcesses, ProcReader


def watch_remote_ranks(watchdog: Watchdog, remote: Sequence[RemotePart], scratch: Path) -> None:
    """Let a watchdog see the ranks of a world that are on other machines.

    Args:
        watchdog: The world's watchdog.
        remote: The remote ranks.
        scratch: The world's directory, for copies of slot pages.
    """
    observer = _RemoteObserver(remote, scratch)
    watchdog.observer.remote = RemoteRanks(
        observer.ranks, observer.refresh, observer.reader, notes_on(remote)
    )


def notes_on(remote: Sequence[RemotePart]) -> tuple[str, ...]:
    """Return the notes on ranks on other machines: which peer observed them, by which clock."""
    hosts: dict[str, list[RemotePart]] = {}
    for each in remote:
        hosts.setdefault(each.host, []).append(each)
    return tuple(_note(host, parts) for host, parts in hosts.items())


def _note(host: str, parts: Sequence[RemotePart]) -> str:
    error_s = max(part.clock[1] for part in parts)
    clock = f"on a clock known to {error_s * 1e3:.2g} ms" if error_s else "on our clock"
    ranks = rank_set(rank for part in parts for rank in part.ranks)
    return f"{ranks} on {host}: seen by pytest there, {clock}, without native frames"


@dataclass(slots=True)
class _RemoteObserver:
    """Takes snapshots of ranks on other machines.

    Attributes:
        remote: The remote ranks.
        scratch: Where copies of slot pages go.
        shallow: The last shallow snapshots.
    """

    remote: Sequence[RemotePart]
    scratch: Path
    shallow: list[RemoteSnapshot] = field(default_factory=list)

    @property
    def ranks(self) -> frozenset[int]:
        """All remote ranks."""
        return frozenset(rank for each in self.remote for rank in each.ranks)

    def refresh(self) -> None:
        """Take shallow snapshots, for `shallow`.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        self.shallow = self.take(is_deep=False)

    def take(self, *, is_deep: bool) -> list[RemoteSnapshot]:
        """Return a new snapshot of every peer, and copy the slot pages.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        for each in self.remote:
            each.begin_snapshot(is_deep=is_deep)
        return [self._finish(number, each) for number, each in enumerate(self.remote, 1)]

    def _finish(self, number: int, ranks: RemotePart) -> RemoteSnapshot:
        taken, pages = ranks.finish_snapshot()
        offset_s, uncertainty_s = ranks.clock
        for name, data in pages.items():
            (self.scratch / name).write_bytes(shift_times(data, round(offset_s * 1e9)))
        return RemoteSnapshot(number, taken.snapshot, offset_s, uncertainty_s, ranks.machine)

    def reader(self, pids: Mapping[int, int], harness: HarnessProcesses) -> _MergingReader:
        """Return a reader that takes snapshots of all ranks."""
        here = {rank: pid for rank, pid in pids.items() if rank not in self.ranks}
        return _MergingReader(ProcReader(here, harness), self)


@dataclass(frozen=True, slots=True)
class _MergingReader:
    """Takes snapshots of all processes of a world, local and remote."""

    local: ProcReader
    observer: _RemoteObserver

    def shallow_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of the main threads of all ranks."""
        return self._merge(self.local.shallow_snapshot(), self.observer.shallow)

    def deep_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of all threads and descriptors."""
        remote = self.observer.take(is_deep=True)
        return self._merge(self.local.deep_snapshot(), remote)

    def _merge(self, local: KernelSnapshot, remote: Sequence[RemoteSnapshot]) -> KernelSnapshot:
        return merge_snapshots(local, remote, machine=kernel_identity()[0])


_FOREIGN = 1 << 32
"""Machine n's process ids are offset by n times this; Linux assigns no larger ids."""


_SPACE = "net:["
"""Prefix of an address that is valid in one network namespace only."""


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """A snapshot that was taken by a peer.

    Attributes:
        number: 1, 2, ...: distinguishes its process ids from all others.
        snapshot: The peer's snapshot.
        offset_s: Offset from its clock to the controller's.
        slack_s: Error bound of `offset_s`.
        machine: The machine; a loopback address is valid on that one only.
    """

    number: int
    snapshot: KernelSnapshot
    offset_s: float = 0.0
    slack_s: float = 0.0
    machine: str = ""


def merge_snapshots(
    local: KernelSnapshot, others: Sequence[RemoteSnapshot], *, machine: str = ""
) -> KernelSnapshot:
    """Return one snapshot of all processes of the world; `machine` is the controller's."""
    ours = [_named(process, machine) for process in local.processes]
    found = [_moved(process, each) for each in others for process in each.snapshot.processes]
    processes = (*ours, *found)
    ranks = [each for each in processes if each.is_rank]
    children = [each for each in processes if not each.is_rank]
    ordered = [*sorted(ranks, key=lambda each: each.rank or 0), *children]
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
    moved = replace(process, pid=process.pid + base, threads=threads, descriptors=descriptors)
    return _named(moved, where.machine)


def _named(process: Process, machine: str) -> Process:
    """Return a process whose loopback addresses name their machine."""
    descriptors = {
        fd: replace(each, endpoints=(machine + each.endpoints[0], machine + each.endpoints[1]))
        if each.endpoints[0].startswith(_SPACE)
        else each
        for fd, each in process.descriptors.items()
    }
    return replace(process, descriptors=descriptors)


def _earliest(ends_s: float | None, where: RemoteSnapshot) -> float | None:
    """Return the earliest time on the controller's clock for a remote end time."""
    if ends_s is None or math.isinf(ends_s):
        return ends_s
    return ends_s + where.offset_s - where.slack_s


def _connected(processes: Iterable[Process]) -> tuple[Process, ...]:
    """Return processes with connections between machines resolved."""
    processes = tuple(processes)
    owners = {
        each.endpoints: process
        for process in processes
        for each in process.descriptors.values()
        if each.kind == "tcp" and all(each.endpoints)
    }
    return tuple(
        replace(
            process,
            descriptors={
                fd: _connect(each, owners.get((each.endpoints[1], each.endpoints[0])))
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
