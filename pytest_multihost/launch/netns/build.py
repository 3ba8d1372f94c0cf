"""Build the namespaces and links of a world's hosts, in a child of the server.

The child ends as soon as it has sent their descriptors. It goes through every step that a rank will
go through when it enters its host: a kernel that refuses a step does so here, where it can be
reported.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pytest_multihost.launch import libc
from pytest_multihost.launch.netns.child import ChildFailed
from pytest_multihost.launch.netns.etc_files import mount_own_files
from pytest_multihost.launch.netns.links import ETHERNET, LOOPBACK, Links
from pytest_multihost.launch.netns.netlink import open_sock_diag
from pytest_multihost.launch.wire.packets import send_packet
from pytest_multihost.model.spec import BRIDGE_ADDRESS, NETWORK, Host

BRIDGE = "lan"
"""Name of the bridge; "br" would be a keyword of ip(8)."""

_PORTS = 2
_CREATE_NETWORK = "make a network namespace"


@dataclass(frozen=True, slots=True)
class BridgeBuilt:
    """Beside it: the bridge's network namespace; and the user namespace, if one was created."""

    kind: ClassVar = "bridge"


@dataclass(frozen=True, slots=True)
class HostBuilt:
    """Beside it: the network namespace of the next host, and a socket that reads its tables."""

    kind: ClassVar = "host"


@dataclass(frozen=True, slots=True)
class PortsBound:
    """Everything is built. Beside it: sockets bound to ports on the primary's host."""

    kind: ClassVar = "ports"


@dataclass(frozen=True, slots=True)
class Refused:
    """The kernel has refused a step.

    Attributes:
        step: What was tried, as in "make a network namespace".
        errno: The error's number.
        error: The error's text.
    """

    kind: ClassVar = "refused"
    step: str
    errno: int
    error: str


BuildMessage = BridgeBuilt | HostBuilt | PortsBound | Refused | ChildFailed


class RefusedError(Exception):
    """The kernel has refused a step."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error.strerror}")
        self.refused = Refused(step, error.errno or 0, error.strerror or str(error))


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RefusedError(what, error) from error


@dataclass(slots=True)
class _Namespace:
    """One network namespace: its descriptor, its links, and a socket that reads its tables."""

    descriptor: int
    links: Links
    table: socket.socket


def build(hosts: Sequence[Host], folder: Path, connection: socket.socket) -> None:
    """Build the hosts and send their descriptors.

    Sends a `BridgeBuilt`, a `HostBuilt` for each host in order, and `PortsBound`; or `Refused`.

    Args:
        hosts: All hosts.
        folder: Holds the files that they are to have in place of those in /etc.
        connection: Where the packets go.
    """
    try:
        user = _gain_privileges()
        bridge = _enter_new_namespace()
        # The primary's host is created last: then this process is on it, and binds its ports there.
        spaces = [_enter_new_namespace() for _ in hosts][::-1]
        ports = [socket.socket() for _ in range(_PORTS)]
        with _step("mount files over those in /etc, and name a host"):
            mount_own_files(folder / hosts[0].name, hosts[0].name)
        with _step("connect hosts by a bridge and cables"):
            _connect(bridge, spaces, hosts)
            _bind(ports, hosts[0].address)
    except RefusedError as error:
        send_packet(connection, error.refused)
        return
    send_packet(connection, BridgeBuilt(), [bridge.descriptor, *user])
    for each in spaces:
        send_packet(connection, HostBuilt(), [each.descriptor, each.table.fileno()])
    send_packet(connection, PortsBound(), [port.fileno() for port in ports])


def _gain_privileges() -> list[int]:
    """Become able to create namespaces; return the new user namespace, if one was needed."""
    try:
        libc.unshare(libc.NEW_NETWORK)
    except PermissionError:
        with _step("make a user namespace"):
            libc.unshare_user()
        return [os.open("/proc/self/ns/user", os.O_RDONLY)]
    except OSError as error:
        raise RefusedError(_CREATE_NETWORK, error) from error
    return []


def _enter_new_namespace() -> _Namespace:
    """Move into a new network namespace and return it."""
    with _step(_CREATE_NETWORK):
        libc.unshare(libc.NEW_NETWORK)
        return _Namespace(os.open("/proc/self/ns/net", os.O_RDONLY), Links(), open_sock_diag())


def _connect(bridge: _Namespace, spaces: Sequence[_Namespace], hosts: Sequence[Host]) -> None:
    """Plug all hosts into the bridge, and switch everything on.

    A veth pair for each host, as for containers. The bridge has a namespace of its own, so that
    nothing of the machine's network is touched; and cables can be unplugged there by the netfault
    daemon, which is not on any host.
    """
    bridge.links.add_bridge(BRIDGE, ETHERNET)
    bridge.links.disable_ipv6(ETHERNET)
    bridge.links.add_address(ETHERNET, BRIDGE_ADDRESS, NETWORK.prefixlen)
    bridge.links.set_up(LOOPBACK)
    bridge.links.set_up(ETHERNET)
    for host, space in zip(hosts, spaces, strict=True):
        cable = ETHERNET + 1 + host.index
        bridge.links.add_cable(
            host.name, cable, bridge=ETHERNET, peer=host.interface, namespace=space.descriptor
        )
        for links, index in ((bridge.links, cable), (space.links, ETHERNET)):
            links.disable_ipv6(index)
            links.set_up(index)
        space.links.set_up(LOOPBACK)
        space.links.add_address(ETHERNET, host.address, NETWORK.prefixlen)


def _bind(ports: Sequence[socket.socket], address: str) -> None:
    """Reserve ports of an address as `reserve_port` does."""
    for port in ports:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind((address, 0))
