"""The ranks of a world that one attached process has started, and what it can tell of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.launch import Ending
from pytest_multihost.launch.attach.file_transfer import pack
from pytest_multihost.launch.server import ServerWorld
from pytest_multihost.model.event import Event, FaultChanged
from pytest_multihost.model.messages import DumpsWritten, RequestDumps, SnapshotTaken
from pytest_multihost.nemesis import clean_up_faults, heal_files
from pytest_multihost.pytest_plugin.attempt import harness_processes
from pytest_multihost.slots import slots_path
from pytest_multihost.watch.kernel import ProcReader
from pytest_multihost.watch.probes import request_dump


@dataclass(frozen=True, slots=True)
class Directories:
    """A world's directories as its ranks here see them.

    Attributes:
        logs: Where logs and stacks go.
        scratch: For everything else.
        private: What of this is this process's own; None where rank 0's machine sees the files.
    """

    logs: Path
    scratch: Path
    private: Path | None = None

    @classmethod
    def make(cls, home: Path) -> Directories:
        """Make directories that rank 0 does not see."""
        private = Path(tempfile.mkdtemp(prefix="world-", dir=home))
        (private / "scratch" / "shared").mkdir(parents=True)
        (private / "logs").mkdir()
        return cls(private / "logs", private / "scratch", private)


@dataclass(slots=True)
class LocalRanks:
    """Our ranks of the world that is running.

    Attributes:
        world: The ranks.
        directories: Their directories.
        faults: Their events of faults.
    """

    world: ServerWorld
    directories: Directories
    faults: list[Event] = field(default_factory=list)
    _proc: ProcReader = field(init=False)

    def __post_init__(self) -> None:
        pids = dict(zip(self.world.ranks, self.world.forked.pids, strict=True))
        harness = harness_processes(self.directories.logs, self.directories.scratch, frozenset())
        self._proc = ProcReader(pids, harness)

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
        if self.directories.private is None:
            return ending
        found = clean_up_faults(self.faults, self.directories.scratch)
        return Ending((*found, *ending.events), ending.leftovers)

    def dump(self, request: RequestDumps) -> tuple[DumpsWritten, bytes]:
        """Have ranks write what is asked for, and return what they have written."""
        heal_files(self.directories.scratch, request.ranks)
        logs = self.directories.logs
        files = request_dump(self.world, request.ranks, logs, request.what)
        sizes, payload = pack(files.values())
        return DumpsWritten(sizes), payload

    def take_snapshot(self, *, is_deep: bool) -> tuple[SnapshotTaken, bytes]:
        """Return what is seen of the ranks from outside, and their slot pages."""
        snapshot = self._proc.deep_snapshot() if is_deep else self._proc.shallow_snapshot()
        scratch = self.directories.scratch
        sizes, payload = pack(slots_path(scratch, rank) for rank in self.world.ranks)
        return SnapshotTaken(snapshot, sizes), payload

    def remains(self) -> tuple[dict[str, int], bytes]:
        """Return what the ranks have left in files that rank 0 cannot see, and remove it."""
        if self.directories.private is None:
            return {}, b""
        found = pack(sorted(self.directories.logs.glob("rank-*")))
        shutil.rmtree(self.directories.private, ignore_errors=True)
        return found
