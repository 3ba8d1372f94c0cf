"""How the watchdog sees ranks on other machines: the peers there take snapshots and send them.

Slot pages are copied to where the watchdog reads those of its own ranks, with times of our clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.launch import RemotePart
from pytest_multihost.launch.attach.sockets import kernel_identity
from pytest_multihost.model.operation import rank_set
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.pytest_plugin.attach.merge_snapshots import RemoteSnapshot, merge_snapshots
from pytest_multihost.slots import shift_times
from pytest_multihost.watch import RemoteRanks, Watchdog
from pytest_multihost.watch.kernel import HarnessProcesses, ProcReader


def watch_remote_ranks(watchdog: Watchdog, remote: Sequence[RemotePart], scratch: Path) -> None:
    """Let a watchdog see the ranks of a world that are on other machines.

    Args:
        watchdog: The world's.
        remote: These ranks.
        scratch: The world's directory, for copies of slot pages.
    """
    observer = _RemoteObserver(remote, scratch)
    watchdog.observer.remote = RemoteRanks(
        observer.ranks, observer.refresh, observer.reader, notes_on(remote)
    )


def notes_on(remote: Sequence[RemotePart]) -> tuple[str, ...]:
    """Return what must be known of ranks on other machines: who saw them, and by which clock."""
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
        remote: These ranks.
        scratch: Where copies of slot pages go.
        shallow: The last shallow snapshots.
    """

    remote: Sequence[RemotePart]
    scratch: Path
    shallow: list[RemoteSnapshot] = field(default_factory=list)

    @property
    def ranks(self) -> frozenset[int]:
        """All these ranks."""
        return frozenset(rank for each in self.remote for rank in each.ranks)

    def refresh(self) -> None:
        """Take shallow snapshots, for `shallow`.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        self.shallow = self.take(is_deep=False)

    def take(self, *, is_deep: bool) -> list[RemoteSnapshot]:
        """Return what every peer sees now, and copy the slot pages.

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
        """Return what takes snapshots of all ranks."""
        here = {rank: pid for rank, pid in pids.items() if rank not in self.ranks}
        return _MergingReader(ProcReader(here, harness), self)


@dataclass(frozen=True, slots=True)
class _MergingReader:
    """Sees all processes of a world, here and elsewhere."""

    local: ProcReader
    observer: _RemoteObserver

    def shallow_snapshot(self) -> KernelSnapshot:
        """See the main threads of all ranks."""
        return self._merge(self.local.shallow_snapshot(), self.observer.shallow)

    def deep_snapshot(self) -> KernelSnapshot:
        """See all threads and descriptors."""
        remote = self.observer.take(is_deep=True)
        return self._merge(self.local.deep_snapshot(), remote)

    def _merge(self, local: KernelSnapshot, remote: Sequence[RemoteSnapshot]) -> KernelSnapshot:
        return merge_snapshots(local, remote, machine=kernel_identity()[0])
