"""Starts one world with several servers, each of which forks some of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.launch.composite_world import CompositeWorld
from pytest_multihost.core.launch.interface import RunningWorld
from pytest_multihost.core.launch.server.launcher import ServerLauncher
from pytest_multihost.core.launch.server.world import ServerWorld
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.spec import WorldSpec


@dataclass(frozen=True, slots=True)
class SplitLauncher:
    """Starts worlds whose ranks need interpreters of different kinds.

    Attributes:
        shares: The servers, each with the ranks that it forks; together they have each rank once.
    """

    shares: Sequence[tuple[ServerLauncher, tuple[int, ...]]]

    @property
    def name(self) -> str:
        """The launch mode of the first server."""
        return self.shares[0][0].name

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> RunningWorld:
        """Start the ranks of a world, the primary first, because its server holds the ports.

        Raises:
            LaunchError: The ranks could not be started; none is left running.
        """
        parts: list[ServerWorld] = []
        try:
            for launcher, ranks in sorted(self.shares, key=lambda share: 0 not in share[1]):
                ports = parts[0].forked.ports if parts else None
                world = launcher.start(
                    spec, directory=directory, scratch=scratch, ranks=ranks, ports=ports
                )
                parts.append(world)
        except LaunchError:
            CompositeWorld(parts).end(grace_s=0.0)
            raise
        return parts[0] if len(parts) == 1 else CompositeWorld(parts)
