"""Ranks of a world on other machines, as whoever has started them shows them to the watchdog."""

from __future__ import annotations

from typing import Protocol

from pytest_multihost.core.model.process import KernelSnapshot


class RemoteRanks(Protocol):
    """Ranks on other machines: their processes and files cannot be read from here.

    Every request raises LaunchError if what reads them there is gone, or does not answer.
    """

    @property
    def ranks(self) -> frozenset[int]:
        """Which ranks these are. Their process ids mean nothing on this machine."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats for the report: who observed them, and by which clock."""

    def refresh(self) -> None:
        """Fetch their slot pages and their part of a shallow snapshot."""

    def shallow_snapshot(self, local: KernelSnapshot) -> KernelSnapshot:
        """Return a shallow snapshot of the ranks here with what `refresh` has fetched."""

    def deep_snapshot(self, local: KernelSnapshot) -> KernelSnapshot:
        """Return a deep snapshot of the ranks here with a new one of those elsewhere."""
