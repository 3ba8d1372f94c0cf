"""The watchdog's interface to ranks of a world on other machines."""

from __future__ import annotations

from typing import Protocol

from pytest_multihost.core.model.process import KernelSnapshot


class RemoteRanks(Protocol):
    """Ranks on other machines, whose processes and files cannot be read from here.

    Every request raises LaunchError if the process that reads them there is gone or does not
    answer.
    """

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks. Their process ids mean nothing on this machine."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats for the report: which process observed the ranks, and by which clock."""

    def refresh(self) -> None:
        """Fetch the ranks' slot pages and their part of a shallow snapshot."""

    def shallow_snapshot(self, local: KernelSnapshot) -> KernelSnapshot:
        """Return the shallow snapshot `local`, merged with the part that `refresh` has fetched."""

    def deep_snapshot(self, local: KernelSnapshot) -> KernelSnapshot:
        """Return the deep snapshot `local`, merged with a new one of the remote ranks."""
