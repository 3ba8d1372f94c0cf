"""What a process knows of the attached run that it is part of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_multihost.launch.attach.launcher_env import Place
from pytest_multihost.launch.attach.listener import Gathering
from pytest_multihost.launch.attach.stream import Party
from pytest_multihost.launch.attach.world import AttachedLauncher, sites_for
from pytest_multihost.launch.docker.launcher import ContainerLauncher
from pytest_multihost.launch.ladder import Ladder
from pytest_multihost.model.spec import Site


@dataclass(slots=True)
class Attached:
    """This process's part in an attached run.

    Attributes:
        place: Its place.
        secret: What the user has given; None where one is made.
        letter: Where rank 0 leaves its address and the secret that it has made.
        timeout_s: How long to wait for the others.
        gathering: In the controller, the others.
        lost: In the controller, which of them are gone, in words.
    """

    place: Place
    secret: bytes | None
    letter: Path
    timeout_s: float
    gathering: Gathering | None = None
    lost: list[str] = field(default_factory=list)

    @property
    def parties(self) -> Mapping[int, Party]:
        """The other processes; none in an agent."""
        return self.gathering.parties if self.gathering is not None else {}

    def note_losses(self) -> list[str]:
        """Look who is gone; return all that are, in words."""
        for party in self.parties.values():
            party.backlog += party.stream.receive()
            if party.stream.ended is not None:
                words = f"{party.name} is gone: {party.stream.ended}"
                self.lost += [words] if words not in self.lost else []
        return self.lost


ATTACHED = pytest.StashKey[Attached]()


def launcher_of(
    config: pytest.Config, ladder: Ladder | ContainerLauncher
) -> Ladder | ContainerLauncher | AttachedLauncher:
    """Return what starts a world: this process alone, or all that are attached."""
    attached = config.stash.get(ATTACHED, None)
    if attached is None or isinstance(ladder, ContainerLauncher):  # which needs nobody's help
        return ladder
    return AttachedLauncher(ladder, attached.parties)


def sites_of(config: pytest.Config, size: int) -> tuple[Site, ...]:
    """Return the hosts of a world of `size` ranks, where processes on several are attached."""
    attached = config.stash.get(ATTACHED, None)
    return sites_for(size, attached.parties) if attached is not None else ()


def ranks_here(config: pytest.Config, size: int) -> int:
    """Return how many ranks of a world of `size` live on this machine; in a controller."""
    sites = sites_of(config, size)
    return sites[0][-1] if sites else size


def others_of(config: pytest.Config) -> frozenset[int]:
    """Return the other processes that we can see and that start ranks as this one does."""
    attached = config.stash.get(ATTACHED, None)
    parties = attached.parties.values() if attached is not None else ()
    return frozenset(int(party.about["pid"]) for party in parties if party.is_near)
