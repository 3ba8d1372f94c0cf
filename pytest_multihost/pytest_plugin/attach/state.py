"""What a process knows of the attached run that it is part of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_multihost.launch.attach import AttachLauncher, Listener, Membership, Peer, sites_for
from pytest_multihost.launch.docker import ContainerLauncher
from pytest_multihost.launch.server import FallbackLauncher
from pytest_multihost.model.spec import Site


@dataclass(slots=True)
class Attached:
    """This process's part in an attached run.

    Attributes:
        membership: Its rank and what its launcher has told it.
        secret: What the user has given; None where one is made.
        rendezvous_file: Where rank 0 leaves its address and the secret that it has made.
        timeout_s: How long to wait for the others.
        listener: In the controller: what the peers have come to.
        lost: In the controller, which of them are gone, in words.
    """

    membership: Membership
    secret: bytes | None
    rendezvous_file: Path
    timeout_s: float
    listener: Listener | None = None
    lost: list[str] = field(default_factory=list)

    @property
    def peers(self) -> Mapping[int, Peer]:
        """The other processes; none in an agent."""
        return self.listener.peers if self.listener is not None else {}

    def note_losses(self) -> list[str]:
        """Look which peers are gone; return all that are, in words."""
        for peer in self.peers.values():
            peer.note_arrived()
            if peer.stream.ended is not None:
                words = f"{peer.name} is gone: {peer.stream.ended}"
                self.lost += [words] if words not in self.lost else []
        return self.lost


ATTACHED = pytest.StashKey[Attached]()


def launcher_of(
    config: pytest.Config, ladder: FallbackLauncher | ContainerLauncher
) -> FallbackLauncher | ContainerLauncher | AttachLauncher:
    """Return what starts a world: this process alone, or all that are attached."""
    attached = config.stash.get(ATTACHED, None)
    if attached is None or isinstance(ladder, ContainerLauncher):  # which needs nobody's help
        return ladder
    return AttachLauncher(ladder, attached.peers)


def sites_of(config: pytest.Config, size: int) -> tuple[Site, ...]:
    """Return the hosts of a world of `size` ranks, where processes on several are attached."""
    attached = config.stash.get(ATTACHED, None)
    return sites_for(size, attached.peers) if attached is not None else ()


def ranks_here(config: pytest.Config, size: int) -> int:
    """Return how many ranks of a world of `size` live on this machine; in a controller."""
    sites = sites_of(config, size)
    return sites[0][-1] if sites else size


def others_of(config: pytest.Config) -> frozenset[int]:
    """Return the other processes that we can see and that start ranks as this one does."""
    attached = config.stash.get(ATTACHED, None)
    peers = attached.peers.values() if attached is not None else ()
    return frozenset(peer.hello.pid for peer in peers if peer.is_local and peer.hello.pid)
