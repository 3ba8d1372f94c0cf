"""Performs the faults of a world's network: the server's part, and the netfault daemon.

A fault heals when its own time has expired, or with all others when the test's body is over on all
ranks.

The netfault daemon is the process that disturbs the network. It runs in the bridge's network
namespace. Only a world with network faults has one. Each request of the server describes the whole
network from now on. Hosts that are cut off in both directions are plugged into unconnected bridges,
and the kernel does the rest. All other disturbed traffic is relayed in userspace (`relay`).

Healing is the same request with one disturbance less. Without any disturbance, all cables are
plugged into one bridge again and nothing is relayed. The daemon ends with the server, and the
namespaces end with it, so no trace remains.
"""

from __future__ import annotations

import fcntl
import math
import os
import random
import select
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from typing import NoReturn, Self

from pytest_multihost.core.launch import libc
from pytest_multihost.core.launch.packets import receive_packet, send_packet
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.json_values import message
from pytest_multihost.core.model.spec import Host, WorldSpec
from pytest_multihost.core.netlink import open_sock_diag
from pytest_multihost.extensions.netns.effects import (
    NetworkDisturbance,
    Shape,
    bridge_segments,
    disturbance_of,
    merged,
    relay_routes,
)
from pytest_multihost.extensions.netns.kinds import disturbs_network
from pytest_multihost.extensions.netns.links import ETHERNET, Links, reset_connections
from pytest_multihost.extensions.netns.network import (
    BRIDGE,
    ChildFailed,
    HostNetwork,
    set_names_known,
    start_child,
)
from pytest_multihost.extensions.netns.relay import Relay, Uplink

_ORPHAN_RETRIES = "/proc/sys/net/ipv4/tcp_orphan_retries"
_GET_ETHERNET_ADDRESS = 0x8927  # SIOCGIFHWADDR, netdevice(7)
_MORE_BRIDGES = 20_000
"""Index of the first additional bridge."""


@message
class SetDisturbance:
    """To the daemon: the network's state from now on, and the hosts to reset now."""

    wanted: NetworkDisturbance


@message
class DisturbanceSet:
    """From the daemon: done, or the error. The first one means that it is ready."""

    error: str = ""


FromDaemon = DisturbanceSet | ChildFailed


@dataclass(slots=True)
class _HostAccess:
    """Access to one host from outside its namespace.

    Attributes:
        table: A socket that reads the host's socket tables.
        orphan_retries: A file descriptor of the host's sysctl tcp_orphan_retries, see tcp(7).
    """

    host: Host
    ethernet: bytes
    links: Links
    table: socket.socket
    orphan_retries: int


@dataclass(slots=True)
class _Network:
    """The present state of the network.

    Attributes:
        plugged: The bridge that each host's cable is plugged into; 0 is none.
    """

    hosts: Sequence[_HostAccess]
    links: Links
    relay: Relay
    plugged: dict[int, int]
    bridges: list[int] = field(default_factory=lambda: [ETHERNET])

    def set_disturbance(self, wanted: NetworkDisturbance) -> None:
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
            # The cables of each segment go into their own bridge; a single cable into none.
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
        """Return the index of a bridge by its number; adds the bridge if it is the next one."""
        if number == len(self.bridges):
            index = _MORE_BRIDGES + number
            self.links.add_bridge(f"{BRIDGE}-{number}", index)
            self.links.disable_ipv6(index)
            self.links.set_up(index)
            self.bridges.append(index)
        return self.bridges[number]

    def abandon_unsent(self) -> None:
        """Make the kernel drop data that dead ranks could not send over the cut network.

        Otherwise the kernel would retry for two minutes, and keep the namespaces that long.
        """
        for each in self.hosts:
            os.write(each.orphan_retries, b"1")


def run_netfault_daemon(network: HostNetwork, seed: int, connection: socket.socket) -> None:
    """Serve the server's requests until the server ends.

    Args:
        seed: Selects the frames that are lost.
        connection: The connection to the server; all other inherited descriptors are closed.
    """
    network.become_owner()
    signal.signal(signal.SIGTERM, _leave)
    libc.die_with_parent(os.getppid(), signal.SIGTERM)
    hosts = [_visit(*each) for each in zip(network.hosts, network.namespaces, strict=True)]
    libc.join(network.bridge, libc.NEW_NETWORK)
    for one, other in permutations(hosts, 2):  # because ARP does not get through a cut
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
    """Relay frames and serve a request; return False when the server has ended."""
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


_ANSWER_S = 10.0
"""Timeout for the daemon's answer; normally it takes milliseconds."""

_END_S = 1.0
"""How long the daemon may take to end before it is killed."""

_POLL_S = 0.001


@dataclass(slots=True)
class NetworkFaults:
    """The faults of one world's network."""

    network: HostNetwork
    spec: WorldSpec
    pid: int
    connection: socket.socket
    # Keys: the fault's index among the world's faults, and the rank that triggered it. The time in
    # the value is when the fault heals by itself.
    _ongoing: dict[tuple[int, int], tuple[NetworkDisturbance, float]] = field(default_factory=dict)

    @classmethod
    def start(cls, network: HostNetwork, spec: WorldSpec) -> Self | None:
        """Start the netfault daemon; return None if the world has no network faults.

        Raises:
            LaunchError: The kernel lacks a feature that the daemon needs.
        """
        if not disturbs_network(spec.faults):
            return None
        pid, connection = start_child(partial(run_netfault_daemon, network, spec.seed))
        connection.settimeout(_ANSWER_S)
        faults = cls(network, spec, pid, connection)
        if error := faults._await_daemon():
            faults.close()
            happened = "the network between the world's hosts cannot be disturbed"
            raise LaunchError(happened, seen=error)
        return faults

    def begin(self, index: int, rank: int, now_s: float) -> str:
        """Perform a fault; return the error, or an empty text.

        Args:
            index: The fault's index among the world's faults.
            rank: The rank that has passed the fault's point.
        """
        fault = self.spec.faults[index]
        disturbance = disturbance_of(fault, rank, self.spec)
        until_s = now_s + fault.params.get("heals_after", math.inf)
        self._ongoing[index, rank] = (disturbance, until_s)
        return self._apply(disturbance.resets)

    def begin_before_rendezvous(self, now_s: float) -> None:
        """Perform the faults that begin before the ranks start their backends.

        Raises:
            LaunchError: A fault could not be performed.
        """
        for index, fault in enumerate(self.spec.faults):
            for rank in fault.ranks if fault.at.point == "rendezvous" else ():
                if error := self.begin(index, int(rank), now_s):
                    raise LaunchError(f"{fault!r} could not be performed", seen=error)

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a fault heals by itself; None if none does."""
        until_s = min((until_s for _, until_s in self._ongoing.values()), default=math.inf)
        return None if math.isinf(until_s) else max(0.0, until_s - now_s)

    def heal_due(self, now_s: float) -> None:
        """Heal the faults whose time has expired."""
        over = [key for key, (_, until_s) in self._ongoing.items() if until_s <= now_s]
        for key in over:
            del self._ongoing[key]
        if over:
            self._apply()

    def heal_all(self) -> str:
        """Heal all faults; return the error, or an empty text."""
        is_disturbed = bool(self._ongoing)
        self._ongoing.clear()
        return self._apply() if is_disturbed else ""

    def close(self) -> None:
        """End the daemon, which exits when its connection is closed."""
        self.connection.close()
        deadline_s = time.monotonic() + _END_S
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline_s:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def _apply(self, resets: frozenset[int] = frozenset()) -> str:
        """Apply the combined ongoing faults to the network; return the error, or an empty text."""
        wanted = merged(each for each, _ in self._ongoing.values())
        for host in self.network.hosts:
            is_known = host.index not in wanted.nameless
            set_names_known(self.network.folder, self.network.hosts, host, is_known=is_known)
        return self._await_daemon(SetDisturbance(replace(wanted, resets=resets)))

    def _await_daemon(self, request: SetDisturbance | None = None) -> str:
        """Send a request, if given, and await the answer; return the error, or an empty text."""
        try:
            if request is not None:
                send_packet(self.connection, request)
            answer = receive_packet(self.connection, FromDaemon)
        except OSError as error:
            return f"the netfault daemon does not answer: {error}"
        return answer.message.error if answer else "the netfault daemon has ended"
