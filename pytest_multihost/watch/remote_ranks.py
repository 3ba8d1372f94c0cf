"""How the watchdog sees ranks on other machines: the peers there take snapshots and send them.

Slot pages are copied beside those of local ranks, with times converted to the controller's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.launch import RemotePart
from pytest_multihost.model.messages import TakeSnapshot
from pytest_multihost.model.operation import group_by_value, rank_set
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.slots import shift_times
from pytest_multihost.watch.kernel import HarnessProcesses, KernelReader, ProcReader
from pytest_multihost.watch.merged_snapshots import RemoteSnapshot, merge_snapshots


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
