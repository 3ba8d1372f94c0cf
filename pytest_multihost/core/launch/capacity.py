"""Computes how many ranks fit on this machine, so that a world too large is refused at once.

Without this check the kernel ends the server after a minute, and the message speaks of a lost
server. A request beyond a user's limits fails at once by itself; see `refusals`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.core.launch.control_groups import OWN_GROUPS, ControlGroups
from pytest_multihost.core.model.errors import LaunchError

RANK_BYTES = 8 << 20
"""Memory that a forked rank takes at least. Measured after one barrier, in private pages: 9.4 MB
without a runtime, 11 MB with gloo, 16 MB with jax before its first program."""

CROWDED = 64
"""Ranks per core above which a user is warned: on two cores 150 ranks without a runtime pass in
8 s, and 1000 ranks take minutes."""


@dataclass(frozen=True, slots=True)
class Room:
    """The resources that ranks can still take of this machine.

    Attributes:
        processes: Further processes; None: unlimited.
    """

    memory: int
    processes: int | None

    def problem(self, ranks: int) -> str:
        """Return why so many ranks do not fit, and how many do; empty if they fit."""
        most, why = self._most()
        return f"{why}: at most {most} ranks fit" if ranks > most else ""

    def warning(self, ranks: int, cores: int) -> str:
        """Return how many ranks fit, if so many take long on these cores; empty if they do not."""
        if ranks <= CROWDED * cores:
            return ""
        most, why = self._most()
        return (
            f"{ranks} ranks share {cores} cores, and a world can take minutes;"
            f" {why}: at most {most} ranks fit"
        )

    def _most(self) -> tuple[int, str]:
        """Return how many ranks fit, and which resource limits them."""
        memory = (
            f"{self.memory / 1e9:.1f} GB of memory are available, and a rank takes at least"
            f" {RANK_BYTES >> 20} MB"
        )
        limits = [(self.memory // RANK_BYTES, memory)]
        if self.processes is not None:
            limits.append((self.processes, f"{self.processes} processes can still be started"))
        return min(limits)


def require_room(ranks: int, room: Room | None = None) -> None:
    """Check that so many further ranks fit on this machine.

    Args:
        room: The free resources of the machine; None: look now.

    Raises:
        LaunchError: They do not fit.
    """
    if problem := (room or look()).problem(ranks):
        raise LaunchError(
            f"{ranks} ranks do not fit on this machine",
            seen=f"{problem[:1].upper()}{problem[1:]}.",
            remedy="Use fewer ranks, or raise that limit.",
        )


def look(groups: ControlGroups = OWN_GROUPS) -> Room:
    """Return the room that this machine and this process's control groups leave."""
    return Room(groups.memory().available, groups.processes_left())
