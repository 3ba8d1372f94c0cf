"""The netfault daemon: the process that disturbs the network of a world's hosts.

It runs in the bridge's network namespace. Only a world with faults of the network has one. Each
request of the server describes the whole network as it is to be from now on. Hosts that are cut off
in both directions are plugged into unconnected bridges, and the kernel does the rest. All other
disturbed traffic is relayed in userspace (`relay`).

Healing is the same request with one disturbance less: without any, all cables are plugged into one
bridge again and nothing is relayed. The daemon ends with the server, and the namespaces with it, so
nothing is left of what it has done.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import permutations
from typing import NoReturn

from pytest_multihost.launch import libc
from pytest_multihost.launch.netns.build import BRIDGE, ChildFailed
from pytest_multihost.launch.netns.netlink import ETHERNET, Links, open_sock_diag, reset_connections
from pytest_multihost.launch.netns.network import HostNetwork
from pytest_multihost.launch.netns.relay import Relay, Uplink
from pytest_multihost.launch.wire import receive_packet, send_packet
from pytest_multihost.model.json_values import message
from pytest_multihost.model.network import Disturbance, Shape, bridge_segments, relay_routes
from pytest_multihost.model.spec import Host

_ORPHAN_RETRIES = "/proc/sys/net/ipv4/tcp_orphan_retries"
_GET_ETHERNET_ADDRESS = 0x8927  # SIOCGIFHWADDR, netdevice(7)
_MORE_BRIDGES = 20_000
"""Index of the first bridge beside the one that always exists."""


@message
class SetDisturbance:
    """To the daemon: the network's state from now on, and the hosts to reset now."""

    wanted: Disturbance


@message
class DisturbanceSet:
    """From the daemon: done, or what went wrong. The first one says that it is ready."""

    error: str = ""


FromDaemon = DisturbanceSet | ChildFailed


@dataclass(slots=True)
class _HostAccess:
    """Access to one host from outside of its namespace.

    Attributes:
        host: The host.
        ethernet: Its Ethernet address.
        links: Its links.
        table: A socket that reads its socket tables.
        orphan_retries: A descriptor of its sysctl tcp_orphan_retries, see tcp(7).
    """

    host: Host
    ethernet: bytes
    links: Links
    table: socket.socket
    orphan_retries: int


@dataclass(slots=True)
class _Network:
    """The network as it is now.

    Attributes:
        hosts: Access to the hosts.
        links: The bridge's.
        relay: Relays frames between bridges.
        plugged: The bridge that each host's cable is plugged into; 0 is none.
        bridges: The bridges that exist.
    """

    hosts: Sequence[_HostAccess]
    links: Links
    relay: Relay
    plugged: dict[int, int]
    bridges: list[int] = field(default_factory=lambda: [ETHERNET])

    def set_disturbance(self, wanted: Disturbance) -> None:
        """Change the network to the wanted state.

        Raises:
            OSError: The kernel refuses.
        """
        segments = bridge_segments(len(self.hosts), wanted)
        routes = relay_routes(segments, wanted)
        for index, shape in wanted.shapes.items():
            if shape.loss or shape.bytes_per_s is not None:
                self.hosts[index].links.send_single_packets(ETHERNET)
        for access, uplink in zip(self.hosts, self.relay.uplinks, strict=True):
            uplink.shape = wanted.shapes.get(access.host.index, Shape())
        # A host is tapped before it is unplugged: frames sent meanwhile may arrive twice, which
        # TCP corrects, but are not lost.
        self.relay.tap(routes)
        self.relay.routes = routes
        for number, segment in enumerate(segments):
            # The cables of each segment go into a bridge of its own; a lone cable into none.
            bridge = self._bridge(number) if len(segment) > 1 else 0
            for host in segment:
                if self.plugged[host] != bridge:
                    self.links.plug(ETHERNET + 1 + host, bridge)
                    self.plugged[host] = bridge
        self.relay.set_routes(routes, time.monotonic())
        for index in wanted.resets:
            others = {each.host.address for each in self.hosts if each.host.index != index}
            reset_connections(self.hosts[index].table, others)

    def _bridge(self, number: int) -> int:
        """Return the index of a bridge, which is added if there is none of that number."""
        if number == len(self.bridges):
            index = _MORE_BRIDGES + number
            self.links.add_bridge(f"{BRIDGE}-{number}", index)
            self.links.disable_ipv6(index)
            self.links.set_up(index)
            self.bridges.append(index)
        return self.bridges[number]

    def abandon_unsent(self) -> None:
        """Have the kernel drop data that dead ranks could not send over the cut network.

        It would retry for two minutes, and keep the namespaces for so long.
        """
        for each in self.hosts:
            os.write(each.orphan_retries, b"1")


def run_netfault_daemon(network: HostNetwork, seed: int, connection: socket.socket) -> None:
    """Serve the server's requests until it ends.

    Args:
        network: The world's network.
        seed: Decides which frames are lost.
        connection: To the server; all other descriptors are closed.
    """
    network.become_owner()
    signal.signal(signal.SIGTERM, _leave)
    libc.die_with_parent(os.getppid(), signal.SIGTERM)
    hosts = [_visit(*each) for each in zip(network.hosts, network.namespaces, strict=True)]
    libc.join(network.bridge, libc.NEW_NETWORK)
    for one, other in permutations(hosts, 2):  # ARP would not get through a cut
        one.links.add_neighbour(ETHERNET, other.host.address, other.ethernet)
    uplinks = [Uplink(chance=random.Random(f"{seed}/{host.name}")) for host in network.hosts]
    cables = [host.name for host in network.hosts]
    relay = Relay(cables, {each.ethernet: each.host.index for each in hosts}, uplinks)
    running = _Network(hosts, Links(), relay, dict.fromkeys(range(len(hosts)), ETHERNET))
    # Descriptors inherited from the server would keep ranks' connections open.
    kept = {0, 1, 2, connection.fileno(), running.links.fileno()}
    for each in hosts:
        kept |= {each.links.fileno(), each.table.fileno(), each.orphan_retries}
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        with suppress(OSError):  # the listing's own descriptor
            os.close(descriptor)
    send_packet(connection, DisturbanceSet())
    try:
        while _serve_once(running, connection):
            pass
    finally:
        running.abandon_unsent()


def _leave(*_: object) -> NoReturn:
    raise SystemExit


def _serve_once(network: _Network, connection: socket.socket) -> bool:
    """Relay frames and serve a request; return whether to go on."""
    relay = network.relay
    relay.deliver(time.monotonic())
    timeout_s = relay.wait_s(time.monotonic())
    ready, _, _ = select.select([connection, *relay.sockets()], [], [], timeout_s)
    for each in ready:
        if each is not connection:
            relay.read(each, time.monotonic())
    if connection not in ready:
        return True
    packet = receive_packet(connection, SetDisturbance)
    if packet is None:
        return False
    error = ""
    try:
        network.set_disturbance(packet.message.wanted)
    except OSError as refused:
        error = f"the kernel refuses: {refused.strerror or refused}"
    send_packet(connection, DisturbanceSet(error))
    return True


def _visit(host: Host, namespace: int) -> _HostAccess:
    """Enter a host's namespace, and return access to it from elsewhere."""
    libc.join(namespace, libc.NEW_NETWORK)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", host.interface.encode())
        ethernet = fcntl.ioctl(probe, _GET_ETHERNET_ADDRESS, request)[18:24]
    retries = os.open(_ORPHAN_RETRIES, os.O_WRONLY)
    return _HostAccess(host, ethernet, Links(), open_sock_diag(), retries)
