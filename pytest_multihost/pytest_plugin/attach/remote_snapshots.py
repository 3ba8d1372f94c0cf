"""The watchdog's eyes on ranks of other machines: the processes there look, and tell.

Slot pages are copied to where the watchdog reads those of its own ranks, with times of our clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_multihost.launch.attach.file_transfer import unpack
from pytest_multihost.launch.attach.stream import Peer, kernel_identity
from pytest_multihost.launch.attach.world import AttachedWorld
from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.model.json_values import from_json
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.pytest_plugin.attach.merge_snapshots import (
    RemoteSnapshot,
    merge_snapshots,
)
from pytest_multihost.slots import shift_times
from pytest_multihost.watch import RemoteRanks, Watchdog
from pytest_multihost.watch.kernel import HarnessProcesses, ProcReader

_SEE_S = 10.0
"""How long a process may take to look. One that is stopped never answers."""


def watch_remote_ranks(watchdog: Watchdog, world: AttachedWorld) -> None:
    """Let a watchdog see the ranks of a world that are on other machines."""
    far = world.far
    if not far:
        return
    observer = RemoteObserver(far, world.scratch)
    ranks = frozenset(rank for ranks in far.values() for rank in ranks)
    watchdog.observer.remote = RemoteRanks(ranks, observer.refresh, observer.reader, notes_on(far))


def notes_on(far: Mapping[Peer, tuple[int, ...]]) -> tuple[str, ...]:
    """Return what must be known of ranks on other machines: who saw them, and by which clock."""
    hosts: dict[str, list[Peer]] = {}
    for peer in far:
        hosts.setdefault(peer.host, []).append(peer)
    return tuple(
        _note(host, [rank for peer in peers for rank in far[peer]], peers)
        for host, peers in hosts.items()
    )


def _note(host: str, ranks: list[int], peers: list[Peer]) -> str:
    error_s = max(peer.uncertainty_s for peer in peers)
    clock = f"on a clock known to {error_s * 1e3:.2g} ms" if error_s else "on our clock"
    return f"{rank_set(ranks)} on {host}: seen by pytest there, {clock}, without native frames"


@dataclass(slots=True)
class RemoteObserver:
    """What processes on other machines see.

    Attributes:
        far: These processes, with their ranks.
        scratch: Where copies of slot pages go.
    """

    far: Mapping[Peer, tuple[int, ...]]
    scratch: Path
    _last: list[RemoteSnapshot] = field(default_factory=list)

    def refresh(self) -> None:
        """Have everybody glance at its ranks.

        Raises:
            LaunchError: A process is gone, or does not answer.
        """
        self._last = self.look({"deep": False})

    def glances(self) -> list[RemoteSnapshot]:
        """Return what the last glance has shown."""
        return self._last

    def look(self, how: Mapping[str, Any]) -> list[RemoteSnapshot]:
        """Return what everybody sees now, and copy the slot pages.

        Raises:
            LaunchError: A process is gone, or does not answer.
        """
        asked = {peer: peer.request({"kind": "see", **how}) for peer in self.far}
        found = []
        for number, (peer, request) in enumerate(asked.items(), 1):
            answer = peer.answer(request, within_s=_SEE_S)
            self._copy_pages(peer, answer)
            look = from_json(KernelSnapshot, answer.header["look"])
            machine = peer.about["kernel"][0]
            found.append(RemoteSnapshot(number, look, peer.offset_s, peer.uncertainty_s, machine))
        return found

    def _copy_pages(self, peer: Peer, answer: Frame) -> None:
        for name, data in unpack(answer).items():
            (self.scratch / name).write_bytes(shift_times(data, round(peer.offset_s * 1e9)))

    def reader(self, pids: Mapping[int, int], harness: HarnessProcesses) -> _Joined:
        """Return what looks at all ranks."""
        far = {rank for ranks in self.far.values() for rank in ranks}
        near = {rank: pid for rank, pid in pids.items() if rank not in far}
        return _Joined(ProcReader(near, harness), self)


@dataclass(frozen=True, slots=True)
class _Joined:
    """Sees all processes of a world, here and elsewhere."""

    mine: ProcReader
    eyes: RemoteObserver

    def shallow_snapshot(self) -> KernelSnapshot:
        """See the main threads of all ranks."""
        return merge_snapshots(
            self.mine.shallow_snapshot(), self.eyes.glances(), machine=kernel_identity()[0]
        )

    def deep_snapshot(self) -> KernelSnapshot:
        """See all threads and descriptors."""
        others = self.eyes.look({"deep": True})
        return merge_snapshots(self.mine.deep_snapshot(), others, machine=kernel_identity()[0])
