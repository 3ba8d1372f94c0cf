"""Reads a job's ranks with the rights of their user, for a process of root's that judges them.

`multihost attach --join` merges the readings of several machines, and so it judges as root. Each
reading happens in a child that has the user's rights only; root gets its answer as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.extensions.live.as_user import User, as_user
from pytest_multihost.extensions.live.reader import JobReader, Stacks


@dataclass(frozen=True, slots=True)
class UserReader:
    """Reads ranks on this machine; a `JobReader`."""

    reader: JobReader
    user: User

    def shallow_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of the main threads."""
        return as_user(self.user, self.reader.shallow_snapshot, KernelSnapshot)

    def deep_snapshot(self) -> KernelSnapshot:
        """Return a snapshot of all threads and file descriptors."""
        return as_user(self.user, self.reader.deep_snapshot, KernelSnapshot)

    def read_stacks(self, *, reads_native: bool) -> Stacks:
        """Return the facts in the stacks.

        Args:
            reads_native: Whether threads may be stopped for a moment to read native frames.
        """
        read = partial(self.reader.read_stacks, reads_native=reads_native)
        return as_user(self.user, read, Stacks)

    def turns(self, idle: Collection[int]) -> Mapping[int, int] | None:
        """Return None: each reading is another process, so two cannot be compared."""
        del idle
        return None
