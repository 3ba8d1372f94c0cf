"""What was seen of a world at one instant."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.model.operation import Operation, Operations
from pytest_multihost.model.process import KernelSnapshot


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen of a world at one instant: its processes, and what its ranks tell they do.

    Attributes:
        kernel: Its processes.
        operations: What its ranks tell.
        severed: By addresses: whose frames do not arrive at whom, until somebody heals that.
        is_disturbed: Whether faults of the network go on or went on. Then what was sent and not
            acknowledged may be lost, and come again after any time.
    """

    kernel: KernelSnapshot
    operations: tuple[Operations, ...] = ()
    severed: frozenset[tuple[str, str]] = frozenset()
    is_disturbed: bool = False

    def waited(self, rank: int | None, tid: int) -> tuple[Operation, ...]:
        """Return the open operations for whose end a thread of a rank waits."""
        of_rank = [each for each in self.operations if each.rank == rank]
        found = [operation for each in of_rank for operation in each.open]
        return tuple(each for each in found if each.thread == tid and each.waited_s is not None)
