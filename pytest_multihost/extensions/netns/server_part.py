"""The server's part of the service "netns": it holds the hosts, and performs their faults."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.extensions.netns.hosts import hosts_of
from pytest_multihost.extensions.netns.kind_of_hosts import NAME
from pytest_multihost.extensions.netns.network import HOSTS_FOLDER, HostNetwork, make_network
from pytest_multihost.extensions.netns.network_faults import NetworkFaults


@dataclass(slots=True)
class NetnsPart:
    """The hosts of one world and their network faults, if any; see `ServerPart`."""

    network: HostNetwork
    faults: NetworkFaults | None = None

    @property
    def ports(self) -> Sequence[socket.socket]:
        """Two sockets that reserve the world's ports on the primary's host."""
        return self.network.ports

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors of the network, and of the connection to the netfault daemon."""
        daemon = [self.faults.connection.fileno()] if self.faults is not None else []
        return [*self.network.descriptors, *daemon]

    @property
    def companions(self) -> Sequence[int]:
        """The netfault daemon, if there is one."""
        return [self.faults.pid] if self.faults is not None else []

    @property
    def exchanges(self) -> Sequence[int]:
        """None: ranks do not wait for each other through the daemon."""
        return ()

    def take_tables(self) -> Mapping[str, int]:
        """Return sockets that read the hosts' socket tables, by the names of their namespaces."""
        found = dict(zip(self.network.names, self.network.tables, strict=True))
        self.network.tables = ()
        return found

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a fault heals by itself; None if none does."""
        return self.faults.wait_s(now_s) if self.faults is not None else None

    def act(self, now_s: float) -> None:
        """Heal the faults whose time has expired."""
        if self.faults is not None:
            self.faults.heal_due(now_s)

    def enter(self, rank: int) -> None:
        """Move this process, a rank, onto its host."""
        self.network.enter(rank)

    def perform(self, rank: int, index: int) -> str:
        """Perform a network fault; return the error, or an empty text."""
        if self.faults is None:
            return "the world has no faults of the network"
        return self.faults.begin(index, rank, time.monotonic())

    def undo(self) -> str:
        """Heal all faults; return the error, or an empty text."""
        return self.faults.heal_all() if self.faults is not None else ""

    def begin_end(self) -> None:
        """End the netfault daemon."""
        if self.faults is not None:
            self.faults.close()
            self.faults = None

    def close(self) -> None:
        """Close the network, which disappears with the last process inside."""
        self.begin_end()
        self.network.close()


def start(spec: WorldSpec, scratch: Path) -> NetnsPart:
    """Make the hosts of a world, and perform the faults that precede the rendezvous.

    Raises:
        LaunchError: The hosts cannot be made on this machine; the error has the reason and remedy.
        OSError: The hosts' files cannot be written.
    """
    part = NetnsPart(make_network(spec.all_hosts, scratch / HOSTS_FOLDER))
    try:
        part.faults = NetworkFaults.start(part.network, spec)
        if part.faults is not None:
            part.faults.begin_before_rendezvous(time.monotonic())
    except BaseException:
        part.close()
        raise
    return part


def probe(scratch: Path) -> None:
    """Make a network of one host and close it, to find out whether that is possible.

    Raises:
        LaunchError: It is not possible; the error has the reason and the remedy.
        OSError: The host's files cannot be written.
    """
    make_network(hosts_of(1, 1, NAME), scratch).close()
