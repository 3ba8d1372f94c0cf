"""Shows ranks on other machines to the watchdog: the peers there take snapshots and send them.

Slot pages are copied next to those of local ranks, with times converted to the controller's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.files import write
from pytest_multihost.core.model.messages import TakeSnapshot
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.watch.kernel.merged_snapshot import RemoteSnapshot, merge_snapshots

Files = Mapping[str, bytes]
"""The contents of files by name."""


@dataclass(frozen=True, slots=True)
class RemotePart:
    """Ranks of a world on another machine, observed through the peer that has started them.

    Attributes:
        clock: Offset in seconds from the peer's clock to the controller's, and its error bound.
        begin_snapshot: Makes the peer take a snapshot. Returns a function that waits for the
            snapshot and returns it with the ranks' slot pages by file name, with their times on the
            controller's clock; the function raises LaunchError if the peer does not answer, or
            sends unreadable data.
    """

    ranks: Sequence[int]
    host: str
    clock: tuple[float, float]
    begin_snapshot: Callable[[TakeSnapshot], Callable[[], tuple[KernelSnapshot, Files]]]


@dataclass(slots=True)
class PeersRanks:
    """The ranks that peers on other machines have started; see `RemoteRanks`.

    Attributes:
        scratch: The world's directory, which gets copies of the slot pages.
    """

    parts: Sequence[RemotePart]
    scratch: Path
    names: Names
    shallow: list[RemoteSnapshot] = field(default_factory=list)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks' numbers; their process ids mean nothing on this machine."""
        return frozenset(rank for each in self.parts for rank in each.ranks)

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats for the report: which process observed the ranks, and by which clock."""
        notes = []
        for host, parts in group_by_value((each.host, each) for each in self.parts).items():
            error_s = max(part.clock[1] for part in parts)
            clock = f"times are exact to {error_s * 1e3:.2g} ms" if error_s else "on pytest's clock"
            ranks = self.names.of(rank for part in parts for rank in part.ranks)
            notes.append(
                f"{ranks} on {host}: watched by the process there, {clock}, without native frames"
            )
        return tuple(notes)

    def refresh(self) -> None:
        """Fetch the ranks' slot pages and their part of a shallow snapshot.

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
            for name, data in pages.items():
                write(self.scratch / name, data)
            found.append(RemoteSnapshot(number, snapshot, *part.clock))
        return found

    def shallow_snapshot(self, local: KernelSnapshot) -> KernelSnapshot:
        """Return a snapshot of the main threads of all ranks."""
        return merge_snapshots(local, self.shallow, self.names)

    def deep_snapshot(self, local: KernelSnapshot) -> KernelSnapshot:
        """Return a snapshot of all threads and file descriptors."""
        return merge_snapshots(local, self.take(is_deep=True), self.names)
