"""A snapshot of a world as a proof needs it: its processes, and what its ranks say they do."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.model.operation import Operation, Operations
from pytest_multihost.model.process import KernelSnapshot


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A world at one instant.

    Attributes:
        kernel: Its processes, as the kernel shows them.
        operations: What is on its ranks' slot pages.
        severed: Pairs of addresses: frames of the first do not arrive at the second, until somebody
            heals that.
        is_disturbed: Whether faults of the network are at work, or were. Then what was sent and not
            acknowledged may be lost, and repeated after any time.
    """

    kernel: KernelSnapshot
    operations: tuple[Operations, ...] = ()
    severed: frozenset[tuple[str, str]] = frozenset()
    is_disturbed: bool = False

    def awaited_operations(self, rank: int | None, tid: int) -> tuple[Operation, ...]:
        """Return the open operations for whose end a thread of a rank waits."""
        of_rank = [each for each in self.operations if each.rank == rank]
        found = [operation for each in of_rank for operation in each.open]
        return tuple(each for each in found if each.thread == tid and each.waited_s is not None)
