"""netlink(7): links, addresses and socket tables of network namespaces.

A netlink socket always belongs to the network namespace in which it was created, whichever
process holds it. So a process that holds a host's sockets can configure that host's links, reset
its connections and read its socket tables (`watch.kernel.sockets`) from anywhere, without entering
the namespace.

Written by hand: the programs `ip` and `ss` need a process for each namespace, and importing a
library takes longer than creating four hosts.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
import struct
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

LOOPBACK = 1
"""Index of the loopback interface, in every network namespace."""

ETHERNET = 100
"""Index of a host's interface, and of the bridge; kernels put tunnels of their own at 2, 3, ..."""

_CREATE, _EXCLUSIVE, _REPLACE = 0x400, 0x200, 0x100  # NLM_F_*: what to do about an object
_REQUEST, _ACKNOWLEDGE, _DUMP, _INTERRUPTED = 0x1, 0x4, 0x300, 0x10
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
_BUFFER = 1 << 17
_TRIES = 3
_TIMEOUT_S = 5.0
_sequence = itertools.count(1)
"""Distinguishes answers to a request from late answers to an earlier one that has timed out."""

# rtnetlink(7): requests (RTM_*), structures, attributes of links (IFLA_*) and neighbours (NDA_*)
_NEW_LINK, _SET_LINK, _NEW_ADDRESS, _NEW_NEIGHBOUR = 16, 19, 20, 28
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg
_ADDRESS = struct.Struct("=BBBBi")  # struct ifaddrmsg
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # struct ndmsg
_UP = 0x1
_NAME, _MASTER, _INFO, _NAMESPACE_FD, _FAMILIES = 3, 10, 18, 28, 26
_KIND, _DATA = 1, 2
_PEER = 1  # of a veth
_SNOOPING = 23  # of a bridge
_MAX_SEGMENTS = 40  # of a packet that is split when it is sent (generic segmentation offload)
_ADDRESS_MODE, _NO_ADDRESS = 8, 1  # of IPv6
_LOCAL = 2
_DESTINATION, _ETHERNET_ADDRESS, _PERMANENT = 1, 2, 0x80

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG, sock_diag(7)
_BY_FAMILY, _DESTROY = 20, 21
_TCP = 6
_STATES = 0xFFFFFFFF & ~(1 << 10) & ~(1 << 7)  # all but those that listen or are closed
_ID = slice(4, 52)  # struct inet_diag_sockid in an entry: addresses, ports, cookie
_REMOTE_AT = 24
_ADDRESS_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}


def open_sock_diag() -> socket.socket:
    """Return a socket that reads the socket tables of the network namespace of this process."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    return socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG)


def netlink_request(netlink: socket.socket, kind: int, body: bytes, flags: int = 0) -> None:
    """Make a request, and wait until it has been carried out.

    Raises:
        OSError: It was refused; with the kernel's error number.
        TimeoutError: The socket has a timeout, and no answer came.
    """
    sequence = _send(netlink, kind, _REQUEST | _ACKNOWLEDGE | flags, body)
    answers = _answers(netlink, sequence)
    # An acknowledgement is an "error" with the number 0.
    _check(next(message for answer, _, message in answers if answer == _ERROR))


def netlink_dump(netlink: socket.socket, kind: int, body: bytes) -> list[bytes]:
    """Return all entries of a table, as messages without their header.

    Raises:
        OSError: It was refused, or the table changed during every attempt.
        TimeoutError: The socket has a timeout, and no answer came.
    """
    for _ in range(_TRIES):
        found: list[bytes] = []
        is_changed = False  # meanwhile, so that some may be missing
        sequence = _send(netlink, kind, _REQUEST | _DUMP, body)
        for answer, flags, message in _answers(netlink, sequence):
            is_changed |= bool(flags & _INTERRUPTED)
            if answer == _DONE:
                break
            if answer == _ERROR:
                _check(message)
            found.append(message)
        if not is_changed:
            return found
    raise OSError("the kernel's table kept changing")


def _send(netlink: socket.socket, kind: int, flags: int, body: bytes) -> int:
    sequence = next(_sequence)
    netlink.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body)
    return sequence


def _answers(netlink: socket.socket, sequence: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, flags and content of the answers to a request; the caller knows the last one."""
    while True:
        data, at = netlink.recv(_BUFFER), 0
        while at < len(data):
            size, kind, flags, answered, _ = _HEADER.unpack_from(data, at)
            if answered == sequence:
                yield kind, flags, data[at + _HEADER.size : at + size]
            at += _aligned(size)


def _check(message: bytes) -> None:
    """Raise the error of a message of type NLMSG_ERROR, if there is one."""
    code = -struct.unpack_from("=i", message)[0]
    if code:
        raise OSError(code, f"netlink: {os.strerror(code)}")


def attribute(kind: int, content: bytes) -> bytes:
    """Return an attribute, padded as attributes are inside a message."""
    size = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(size, kind) + content + bytes(_aligned(size) - size)


def netlink_attributes(data: bytes) -> dict[int, bytes]:
    """Return the content of each attribute by its type."""
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        found[kind] = data[at + _ATTRIBUTE.size : at + size]
        at += max(_aligned(size), _ATTRIBUTE.size)
    return found


def _aligned(size: int) -> int:
    return (size + 3) & ~3


@dataclass(slots=True)
class Links:
    """The links of the network namespace in which this was created.

    Every method waits until the kernel has done what is asked, and raises OSError if it refuses.
    """

    _socket: socket.socket = field(
        default_factory=lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    )

    def __post_init__(self) -> None:
        self._socket.settimeout(_TIMEOUT_S)

    def add_bridge(self, name: str, index: int) -> None:
        """Add a bridge, without multicast snooping: it would send queries of its own."""
        data = attribute(_DATA, attribute(_SNOOPING, b"\0"))
        info = attribute(_INFO, attribute(_KIND, b"bridge\0") + data)
        body = _link(index) + _text(_NAME, name) + info
        netlink_request(self._socket, _NEW_LINK, body, _CREATE | _EXCLUSIVE)

    def add_cable(self, name: str, index: int, *, bridge: int, peer: str, namespace: int) -> None:
        """Add a veth(4) pair, a cable: one end in a bridge, its peer in another namespace.

        Args:
            name: Of the end in the bridge.
            index: Of the end in the bridge.
            bridge: Index of the bridge.
            peer: Name of the peer; its index is `ETHERNET`.
            namespace: Descriptor of the network namespace of the peer.
        """
        inside = attribute(_NAMESPACE_FD, struct.pack("=I", namespace))
        pair = attribute(_PEER, _link(ETHERNET) + _text(_NAME, peer) + inside)
        info = attribute(_INFO, attribute(_KIND, b"veth\0") + attribute(_DATA, pair))
        master = attribute(_MASTER, struct.pack("=I", bridge))
        body = _link(index) + _text(_NAME, name) + master + info
        netlink_request(self._socket, _NEW_LINK, body, _CREATE | _EXCLUSIVE)

    def disable_ipv6(self, index: int) -> None:
        """Have an interface take no IPv6 address; it would look for routers for seconds."""
        mode = attribute(_ADDRESS_MODE, bytes([_NO_ADDRESS]))
        families = attribute(_FAMILIES, attribute(socket.AF_INET6, mode))
        with suppress(OSError):  # a kernel without IPv6
            netlink_request(self._socket, _SET_LINK, _link(index) + families)

    def add_address(self, index: int, address: str, prefix: int) -> None:
        """Give an interface an IPv4 address."""
        body = _ADDRESS.pack(socket.AF_INET, prefix, 0, 0, index)
        body += attribute(_LOCAL, ipaddress.ip_address(address).packed)
        netlink_request(self._socket, _NEW_ADDRESS, body, _CREATE | _EXCLUSIVE)

    def plug(self, index: int, bridge: int) -> None:
        """Plug an interface into a bridge, out of the one where it was; 0 is none."""
        body = _link(index) + attribute(_MASTER, struct.pack("=I", bridge))
        netlink_request(self._socket, _SET_LINK, body)

    def send_single_packets(self, index: int) -> None:
        """Have an interface split large packets itself, into packets of the size of its link."""
        body = _link(index) + attribute(_MAX_SEGMENTS, struct.pack("=I", 1))
        netlink_request(self._socket, _SET_LINK, body)

    def add_neighbour(self, index: int, address: str, ethernet: bytes) -> None:
        """Add a permanent neighbour entry for an IPv4 address, so that no ARP is needed."""
        body = _NEIGHBOUR.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
        body += attribute(_DESTINATION, ipaddress.ip_address(address).packed)
        body += attribute(_ETHERNET_ADDRESS, ethernet)
        netlink_request(self._socket, _NEW_NEIGHBOUR, body, _CREATE | _REPLACE)

    def set_up(self, index: int) -> None:
        """Set an interface up."""
        netlink_request(self._socket, _SET_LINK, _LINK.pack(0, 0, index, _UP, _UP))

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()


def _link(index: int) -> bytes:
    return _LINK.pack(0, 0, index, 0, 0)


def _text(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def reset_connections(table: socket.socket, remote: Container[str]) -> None:
    """Reset all TCP connections to some addresses, as ``ss -K`` does.

    Each socket fails with ECONNABORTED, and its peer is sent a reset.

    Args:
        table: Made by `open_sock_diag` in the namespace.
        remote: The addresses.

    Raises:
        OSError: The kernel cannot do that: it needs CONFIG_INET_DIAG_DESTROY.
    """
    table.settimeout(_TIMEOUT_S)
    for family, size in _ADDRESS_BYTES.items():
        request = struct.pack("=BBBBI", family, _TCP, 0, 0, _STATES)  # struct inet_diag_req_v2
        for entry in netlink_dump(table, _BY_FAMILY, request + bytes(48)):
            found = ipaddress.ip_address(entry[_REMOTE_AT : _REMOTE_AT + size])
            mapped = getattr(found, "ipv4_mapped", None) or found
            if str(mapped) in remote:
                with suppress(FileNotFoundError):  # it has closed meanwhile
                    netlink_request(table, _DESTROY, request + entry[_ID])
