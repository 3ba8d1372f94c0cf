"""The state of an attached run in one of its processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_multihost.launch.attach import AttachLauncher, Listener, Membership, Peer, sites_for
from pytest_multihost.launch.docker import ContainerLauncher
from pytest_multihost.launch.server import ServerLauncher
from pytest_multihost.model.spec import Site


@dataclass(slots=True)
class Attached:
    """This process's part in an attached run.

    Attributes:
        membership: Its rank and other values from its launcher.
        secret: The secret given by the user; None where rank 0 makes one.
        rendezvous_file: Where rank 0 writes its address and the secret that it has made.
        timeout_s: Timeout of the wait for the other processes.
        listener: In the controller: the listener that accepts the peers.
        lost: In the controller: descriptions of the peers that are gone.
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
        """Check which peers are gone; return a description of each."""
        for peer in self.peers.values():
            peer.note_arrived()
            if peer.stream.ended is not None:
                words = f"{peer.name} is gone: {peer.stream.ended}"
                self.lost += [words] if words not in self.lost else []
        return self.lost


ATTACHED = pytest.StashKey[Attached]()


def launcher_of(
    config: pytest.Config, ladder: ServerLauncher | ContainerLauncher
) -> ServerLauncher | ContainerLauncher | AttachLauncher:
    """Return a world's launcher: through this process alone, or all attached ones."""
    attached = config.stash.get(ATTACHED, None)
    if attached is None or isinstance(ladder, ContainerLauncher):  # needs no peers
        return ladder
    return AttachLauncher(ladder, attached.peers)


def sites_of(config: pytest.Config, size: int) -> tuple[Site, ...]:
    """Return the hosts of a world of `size` ranks, where processes on several are attached."""
    attached = config.stash.get(ATTACHED, None)
    return sites_for(size, attached.peers) if attached is not None else ()


def ranks_here(config: pytest.Config, size: int) -> int:
    """Return how many ranks of a world of `size` run on this machine; in a controller."""
    sites = sites_of(config, size)
    return sites[0][-1] if sites else size


def others_of(config: pytest.Config) -> frozenset[int]:
    """Return the other processes visible to this one that start ranks as it does."""
    attached = config.stash.get(ATTACHED, None)
    peers = attached.peers.values() if attached is not None else ()
    return frozenset(peer.hello.pid for peer in peers if peer.is_local and peer.hello.pid)
