"""The server's part of the service "netns": it holds the hosts, and performs their faults."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.launch.server.parts import ServerPart
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.extensions.netns.hosts import hosts_of
from pytest_multihost.extensions.netns.kind_of_hosts import NAME
from pytest_multihost.extensions.netns.network import HOSTS_FOLDER, HostNetwork, make_network
from pytest_multihost.extensions.netns.network_faults import NetworkFaults


@dataclass(slots=True)
class _Hosts:
    """The hosts of one world and their network faults, if any."""

    network: HostNetwork
    faults: NetworkFaults | None = None

    def part(self) -> ServerPart:
        """Return the part of the service in this server."""
        return ServerPart(
            ports=self.network.ports,
            descriptors=self.descriptors,
            companions=lambda: [self.faults.pid] if self.faults is not None else [],
            take_tables=self.take_tables,
            wait_s=lambda now_s: self.faults.wait_s(now_s) if self.faults is not None else None,
            act=self.heal_due,
            enter=self.network.enter,
            perform=self.perform,
            undo=lambda: self.faults.heal_all() if self.faults is not None else "",
            begin_end=self.end_faults,
            close=self.close,
        )

    def descriptors(self) -> Sequence[int]:
        """Return the descriptors of the network, and of the connection to the netfault daemon."""
        daemon = [self.faults.connection.fileno()] if self.faults is not None else []
        return [*self.network.descriptors, *daemon]

    def take_tables(self) -> Mapping[str, int]:
        """Return sockets that read the hosts' socket tables, by the names of their namespaces."""
        found = dict(zip(self.network.names, self.network.tables, strict=True))
        self.network.tables = ()
        return found

    def heal_due(self, now_s: float) -> None:
        """Heal the faults whose time has expired."""
        if self.faults is not None:
            self.faults.heal_due(now_s)

    def perform(self, rank: int, index: int) -> str:
        """Perform a network fault; return the error, or an empty text."""
        if self.faults is None:
            return "the world has no faults of the network"
        return self.faults.begin(index, rank, time.monotonic())

    def end_faults(self) -> None:
        """End the netfault daemon."""
        if self.faults is not None:
            self.faults.close()
            self.faults = None

    def close(self) -> None:
        """Close the network, which disappears with the last process inside."""
        self.end_faults()
        self.network.close()


def start(spec: WorldSpec, scratch: Path) -> ServerPart:
    """Make the hosts of a world, and perform the faults that precede the rendezvous.

    Raises:
        LaunchError: The hosts cannot be made on this machine; the error has the reason and remedy.
        OSError: The hosts' files cannot be written.
    """
    hosts = _Hosts(make_network(spec.all_hosts, scratch / HOSTS_FOLDER))
    try:
        hosts.faults = NetworkFaults.start(hosts.network, spec)
        if hosts.faults is not None:
            hosts.faults.begin_before_rendezvous(time.monotonic())
    except BaseException:
        hosts.close()
        raise
    return hosts.part()


def probe(scratch: Path) -> None:
    """Make a network of one host and close it, to find out whether that is possible.

    Raises:
        LaunchError: It is not possible; the error has the reason and the remedy.
        OSError: The host's files cannot be written.
    """
    make_network(hosts_of(1, 1, NAME), scratch).close()
