"""Make the namespaces and links of a world's hosts, in a child of the server.

The child leaves as soon as it has sent their descriptors. It goes through every step that a rank
will go through, so a kernel that refuses does so here, where the reason can be told.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.launch.netns import namespaces as kernel
from pytest_multihost.launch.netns.files import mount_own_files
from pytest_multihost.launch.netns.links import ETHERNET, LOOPBACK, Links
from pytest_multihost.launch.netns.netlink import open_sock_diag
from pytest_multihost.launch.wire.packets import send_packet
from pytest_multihost.model.hosts import BRIDGE_ADDRESS, NETWORK, Host

BRIDGE = "lan"
"""Name of the bridge; `br` would be a word of the language of ip(8)."""

_PORTS = 2
_MAKE = "make a network namespace"


class RefusedError(Exception):
    """The kernel has refused a step.

    Args:
        step: What was tried, as in "make a network namespace".
        error: What it said.
    """

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error.strerror}")
        self.step = step
        self.error = error


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RefusedError(what, error) from error


@dataclass(slots=True)
class _Space:
    """One network namespace: its descriptor, its links, its tables of sockets."""

    descriptor: int
    links: Links
    table: socket.socket


def build(hosts: Sequence[Host], folder: Path, stream: socket.socket) -> None:
    """Make the hosts and send their descriptors.

    Packets are, in this order: ``bridge`` (its namespace; and the user namespace that owns all, if
    there is one), one ``host`` for each (namespace, table of sockets), ``ports``; or ``refused``
    with the step, the error's number and its text.

    Args:
        hosts: All hosts.
        folder: With the files that they are to have in place of those in /etc.
        stream: Where the packets go.
    """
    try:
        user = _gain_privileges()
        bridge = _space()
        # The primary's host is made last: then we are on it, and its ports are made here.
        spaces = [_space() for _ in hosts][::-1]
        ports = [socket.socket() for _ in range(_PORTS)]
        with _step("mount files over those in /etc, and name a host"):
            mount_own_files(folder / hosts[0].name, hosts[0].name)
        with _step("connect hosts by a bridge and cables"):
            _connect(bridge, spaces, hosts)
            _bind(ports, hosts[0].address)
    except RefusedError as refused:
        error = refused.error
        what = {"step": refused.step, "errno": error.errno, "error": error.strerror}
        send_packet(stream, {"kind": "refused", **what})
        return
    send_packet(stream, {"kind": "bridge"}, [bridge.descriptor, *user])
    for each in spaces:
        send_packet(stream, {"kind": "host"}, [each.descriptor, each.table.fileno()])
    send_packet(stream, {"kind": "ports"}, [port.fileno() for port in ports])


def _gain_privileges() -> list[int]:
    """Become able to make namespaces; return the user namespace in which we are, if a new one."""
    try:
        kernel.unshare(kernel.NEW_NETWORK)
    except PermissionError:
        with _step("make a user namespace"):
            kernel.unshare_user()
        return [os.open("/proc/self/ns/user", os.O_RDONLY)]
    except OSError as error:
        raise RefusedError(_MAKE, error) from error
    return []


def _space() -> _Space:
    """Move into a new network namespace and return it."""
    with _step(_MAKE):
        kernel.unshare(kernel.NEW_NETWORK)
        return _Space(os.open("/proc/self/ns/net", os.O_RDONLY), Links(), open_sock_diag())


def _connect(bridge: _Space, spaces: Sequence[_Space], hosts: Sequence[Host]) -> None:
    """Plug all hosts into the bridge, and switch everything on."""
    bridge.links.add_bridge(BRIDGE, ETHERNET)
    bridge.links.disable_ipv6(ETHERNET)
    bridge.links.add_address(ETHERNET, BRIDGE_ADDRESS, NETWORK.prefixlen)
    bridge.links.set_up(LOOPBACK)
    bridge.links.set_up(ETHERNET)
    for host, space in zip(hosts, spaces, strict=True):
        near = ETHERNET + 1 + host.index
        bridge.links.add_cable(
            host.name, near, bridge=ETHERNET, peer=host.interface, namespace=space.descriptor
        )
        for links, index in ((bridge.links, near), (space.links, ETHERNET)):
            links.disable_ipv6(index)
            links.set_up(index)
        space.links.set_up(LOOPBACK)
        space.links.add_address(ETHERNET, host.address, NETWORK.prefixlen)


def _bind(ports: Sequence[socket.socket], address: str) -> None:
    """Reserve ports of an address as `reserve_port` does."""
    for port in ports:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind((address, 0))
