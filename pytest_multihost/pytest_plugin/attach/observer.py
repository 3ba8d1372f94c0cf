"""The watchdog's eyes on ranks of other machines: the processes there look, and tell.

Slot pages are copied to where the watchdog reads those of its own ranks, with times of our clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_multihost.launch.attach.files import unpack
from pytest_multihost.launch.attach.stream import Party, the_kernel
from pytest_multihost.launch.attach.world import AttachedWorld
from pytest_multihost.launch.wire.frame import Frame
from pytest_multihost.model.process import Look
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.pytest_plugin.attach.merge import Elsewhere, from_json, join
from pytest_multihost.watch.kernel.descriptors import HarnessProcesses
from pytest_multihost.watch.kernel.proc import ProcReader
from pytest_multihost.watch.slots import shift
from pytest_multihost.watch.watchdog import Watchdog

_SEE_S = 10.0
"""How long a process may take to look. One that is stopped never answers."""


def watch_far(watchdog: Watchdog, world: AttachedWorld) -> None:
    """Let a watchdog see the ranks of a world that are on other machines."""
    far = world.far
    if not far:
        return
    eyes = Eyes(far, world.scratch)
    watchdog.refresh = eyes.refresh
    watchdog.see = eyes.proc
    watchdog.unreachable = frozenset(rank for ranks in far.values() for rank in ranks)
    watchdog.notes = notes_on(far)


def notes_on(far: Mapping[Party, tuple[int, ...]]) -> tuple[str, ...]:
    """Return what must be known of ranks on other machines: who saw them, and by which clock."""
    hosts: dict[str, list[Party]] = {}
    for party in far:
        hosts.setdefault(party.host, []).append(party)
    return tuple(
        _note(host, [rank for party in parties for rank in far[party]], parties)
        for host, parties in hosts.items()
    )


def _note(host: str, ranks: list[int], parties: list[Party]) -> str:
    error_s = max(party.uncertainty_s for party in parties)
    clock = f"on a clock known to {error_s * 1e3:.2g} ms" if error_s else "on our clock"
    return f"{rank_set(ranks)} on {host}: seen by pytest there, {clock}, without native frames"


@dataclass(slots=True)
class Eyes:
    """What processes on other machines see.

    Attributes:
        far: These processes, with their ranks.
        scratch: Where copies of slot pages go.
    """

    far: Mapping[Party, tuple[int, ...]]
    scratch: Path
    _last: list[Elsewhere] = field(default_factory=list)

    def refresh(self) -> None:
        """Have everybody glance at its ranks.

        Raises:
            LaunchError: A process is gone, or does not answer.
        """
        self._last = self.look({"deep": False})

    def glances(self) -> list[Elsewhere]:
        """Return what the last glance has shown."""
        return self._last

    def look(self, how: Mapping[str, Any]) -> list[Elsewhere]:
        """Return what everybody sees now, and copy the slot pages.

        Raises:
            LaunchError: A process is gone, or does not answer.
        """
        asked = {party: party.request({"kind": "see", **how}) for party in self.far}
        found = []
        for number, (party, request) in enumerate(asked.items(), 1):
            answer = party.answer(request, within_s=_SEE_S)
            self._copy_pages(party, answer)
            look = from_json(answer.header["look"])
            machine = party.about["kernel"][0]
            found.append(Elsewhere(number, look, party.offset_s, party.uncertainty_s, machine))
        return found

    def _copy_pages(self, party: Party, answer: Frame) -> None:
        for name, data in unpack(answer).items():
            (self.scratch / name).write_bytes(shift(data, round(party.offset_s * 1e9)))

    def proc(self, pids: Mapping[int, int], harness: HarnessProcesses) -> _Joined:
        """Return what looks at all ranks."""
        far = {rank for ranks in self.far.values() for rank in ranks}
        near = {rank: pid for rank, pid in pids.items() if rank not in far}
        return _Joined(ProcReader(near, harness), self)


@dataclass(frozen=True, slots=True)
class _Joined:
    """Sees all processes of a world, here and elsewhere."""

    mine: ProcReader
    eyes: Eyes

    def shallow_snapshot(self) -> Look:
        """See the main threads of all ranks."""
        return join(self.mine.shallow_snapshot(), self.eyes.glances(), machine=the_kernel()[0])

    def deep_snapshot(self) -> Look:
        """See all threads and descriptors."""
        others = self.eyes.look({"deep": True})
        return join(self.mine.deep_snapshot(), others, machine=the_kernel()[0])
