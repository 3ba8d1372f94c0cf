"""Try ways of launching from the cheapest to the soundest; use the first that is sound."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.launch.interface import Share
from pytest_multihost.launch.server.launcher import ServerLauncher
from pytest_multihost.launch.server.world import ServerWorld
from pytest_multihost.model.errors import LaunchError, UnsoundForkError
from pytest_multihost.model.spec import WorldSpec


@dataclass(slots=True)
class FallbackLauncher:
    """A launcher that goes on to the next whenever the one in use turns out to be unsound.

    Attributes:
        launchers: The cheapest first; the first one is in use, those that were given up are gone.
        reasons: Why those were given up.
    """

    launchers: list[ServerLauncher]
    reasons: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The way of launching in use."""
        return self.launchers[0].name

    def open(self) -> None:
        """Start a server of the first launcher that is sound.

        Raises:
            UnsoundForkError: None is.
            LaunchError: A server could not be started.
        """
        while True:
            try:
                return self.launchers[0].open()
            except UnsoundForkError as error:
                self._fall_back(error)

    def start(
        self, spec: WorldSpec, *, directory: Path, scratch: Path, share: Share | None = None
    ) -> ServerWorld:
        """Start a world, or a share of it; the launcher in use may have become unsound meanwhile.

        Raises:
            LaunchError: The ranks could not be started.
        """
        while True:
            try:
                return self.launchers[0].start(
                    spec, directory=directory, scratch=scratch, share=share
                )
            except UnsoundForkError as error:
                self._fall_back(error)

    def why_no_hosts(self, scratch: Path) -> LaunchError | None:
        """Return why this machine does not let hosts be made from namespaces; None if it does."""
        return self.launchers[0].why_no_hosts(scratch)

    def _fall_back(self, error: UnsoundForkError) -> None:
        if len(self.launchers) == 1:
            raise error
        self.launchers.pop(0).close()
        self.reasons.append(error.seen)

    def close(self) -> None:
        """End the server."""
        self.launchers[0].close()
