"""The share of a world that one attached process has started, and what it can tell of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_multihost.launch.attach.file_transfer import pack
from pytest_multihost.launch.interface import DumpKind, Ending
from pytest_multihost.launch.server.world import ServerWorld
from pytest_multihost.model.event import Event, FaultChanged
from pytest_multihost.model.json_values import to_json
from pytest_multihost.nemesis.cleanup import heal_files, unreported_faults
from pytest_multihost.pytest_plugin.watchdog_setup import harness_on
from pytest_multihost.slots import slots_path
from pytest_multihost.watch.kernel import ProcReader
from pytest_multihost.watch.probes import request_dump

Answer = tuple[dict[str, Any], bytes]
"""What to add to a frame's header, and its payload."""


@dataclass(slots=True)
class Shared:
    """Our ranks of the world that is running.

    Attributes:
        world: The ranks.
        directory: Where their logs and stacks are.
        scratch: The world's directory for everything else, as they see it.
        own: What of this is ours alone: None where rank 0's machine sees the same files.
        faults: What has been told of faults.
    """

    world: ServerWorld
    directory: Path
    scratch: Path
    own: Path | None = None
    faults: list[Event] = field(default_factory=list)
    _proc: ProcReader = field(init=False)

    def __post_init__(self) -> None:
        pids = dict(zip(self.ranks, self.world.forked.header["pids"], strict=True))
        self._proc = ProcReader(pids, harness_on(self.directory, self.scratch, frozenset()))

    @property
    def ranks(self) -> Sequence[int]:
        """Which ranks these are."""
        return tuple(self.world.streams)

    def wait(self) -> Sequence[Event]:
        """Return what has happened by now.

        Raises:
            LaunchError: The server is gone.
        """
        events = self.world.wait(0)
        self.faults += [event for event in events if isinstance(event.body, FaultChanged)]
        return events

    def end(self, *, grace_s: float) -> Ending:
        """End what is left, and tell what only files of ours know of faults.

        Raises:
            LaunchError: The server is gone.
        """
        ending = self.world.end(grace_s=grace_s)
        found = unreported_faults(self.faults, self.scratch) if self.own is not None else ()
        return Ending((*found, *ending.events), ending.leftovers)

    def dump(self, header: Mapping[str, Any]) -> Answer:
        """Have ranks write what is asked for, and return what they have written."""
        kind: DumpKind = header["what"]
        heal_files(self.scratch, header["ranks"])
        files = request_dump(self.world, header["ranks"], self.directory, kind)
        return pack(files.values())

    def see(self, header: Mapping[str, Any]) -> Answer:
        """Return what is seen of the ranks from outside, and their slot pages."""
        look = self._proc.deep_snapshot() if header["deep"] else self._proc.shallow_snapshot()
        about, payload = pack(slots_path(self.scratch, rank) for rank in self.ranks)
        return {**about, "look": to_json(look)}, payload

    def remains(self) -> Answer:
        """Return what the ranks have left in files that rank 0 cannot see."""
        if self.own is None:
            return {}, b""
        return pack(sorted(self.directory.glob("rank-*")))

    def forget(self) -> None:
        """Remove what is ours alone."""
        if self.own is not None:
            shutil.rmtree(self.own, ignore_errors=True)
