"""Read the processes of a world that has ranks on other machines."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pytest_multihost.core.launch.remote_ranks import RemoteRanks
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.watch.kernel.proc import KernelReader


@dataclass(frozen=True, slots=True)
class NoProcesses:
    """The reader of a machine that has no rank; it need not run Linux."""

    def shallow_snapshot(self) -> KernelSnapshot:
        """Return an empty snapshot."""
        return KernelSnapshot(at_s=time.monotonic(), processes=())

    def deep_snapshot(self) -> KernelSnapshot:
        """Return an empty snapshot that is complete."""
        return KernelSnapshot(at_s=time.monotonic(), processes=(), is_deep=True)


@dataclass(frozen=True, slots=True)
class RemoteReader:
    """Takes snapshots of all processes of a world.

    Attributes:
        local: Reads the processes on this machine.
    """

    local: KernelReader
    remote: RemoteRanks

    def shallow_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of the main threads of all ranks."""
        return self.remote.shallow_snapshot(self.local.shallow_snapshot())

    def deep_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of all threads and descriptors."""
        return self.remote.deep_snapshot(self.local.deep_snapshot())
