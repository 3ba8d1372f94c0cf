"""The sockets of this machine and their peers, from the kernel's tables (sock_diag(7), netlink(7)).

One dump answers for all processes, and has what /proc/net/tcp and /proc/net/unix lack: the peer of
a unix socket, and the bytes that a TCP connection has moved.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace

from pytest_multihost.launch.netns import netlink_attributes, netlink_dump, open_sock_diag

LISTEN = 10
"""The state of a socket that waits for connections, of TCP and of unix sockets."""

_SOCK_DIAG_BY_FAMILY = 20
_UNIX_PEER, _UNIX_QUEUES = 2, 4
_TCP_INFO = 2
_WITH_INFO = 1 << _TCP_INFO - 1
_BYTES_AT = 120  # in struct tcp_info of linux/tcp.h: tcpi_bytes_acked, tcpi_bytes_received
_TIMEOUT_S = 1.0

Address = tuple[str, int]

Table = socket.socket
"""A netlink socket of the kind NETLINK_SOCK_DIAG: it reads the tables of the network namespace in
which it was created, from any process."""


@dataclass(frozen=True, slots=True)
class Inet:
    """One socket of TCP or UDP.

    Attributes:
        inode: 0 until it is accepted, and after it was closed.
        state: The kernel's number for it.
        local: Address and port.
        remote: Those of its peer.
        queues: Bytes to be read, and to be acknowledged.
        bytes_moved: In both directions; 0 where the kernel does not say.
        space: Name of its network namespace.
    """

    inode: int
    state: int
    local: Address
    remote: Address
    queues: tuple[int, int]
    bytes_moved: int = 0
    space: str = ""

    @property
    def endpoints(self) -> tuple[str, Address, Address]:
        """What no other connection has: a loopback address is one of its namespace alone."""
        return (self.space if _is_loopback(self.local) else ""), self.local, self.remote

    @property
    def peer_endpoints(self) -> tuple[str, Address, Address]:
        """The `endpoints` of its peer."""
        return (self.space if _is_loopback(self.remote) else ""), self.remote, self.local


@dataclass(frozen=True, slots=True)
class Unix:
    """One unix socket; `peer` is the inode of the other, 0 if it has none yet, else None."""

    inode: int
    state: int
    peer: int | None
    queues: tuple[int, int]


def inet_sockets(protocol: int, space: str = "", table: Table | None = None) -> list[Inet]:
    """Return all sockets of a protocol in one network namespace.

    Args:
        protocol: Its number.
        space: The namespace's name.
        table: Reads its tables; None: those of this process's namespace.

    Raises:
        OSError: The kernel refuses.
    """
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        request = struct.pack("=BBBBI48x", family, protocol, _WITH_INFO, 0, 0xFFFFFFFF)
        found += [replace(_inet(message), space=space) for message in _dump(request, table)]
    return found


def unix_sockets(table: Table | None = None) -> list[Unix]:
    """Return all unix sockets of a network namespace; without a table, this process's.

    Raises:
        OSError: The kernel refuses.
    """
    show = 1 << _UNIX_PEER | 1 << _UNIX_QUEUES
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show, 0, 0)
    return [_unix(message) for message in _dump(request, table)]


def inet_sockets_from(text: str, space: str = "") -> list[Inet]:
    """Return the sockets in the text of a ``/proc/PID/net/tcp``, ``tcp6``, ``udp`` or ``udp6``."""
    return [_inet_from(line.split(), space) for line in text.splitlines()[1:]]


def _is_loopback(address: Address) -> bool:
    return address[0].startswith("127.") or address[0] == "::1"


def _dump(request: bytes, table: Table | None) -> list[bytes]:
    with nullcontext(table) if table is not None else closing(open_sock_diag()) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        return netlink_dump(netlink, _SOCK_DIAG_BY_FAMILY, request)


def _inet(message: bytes) -> Inet:
    family, state = message[0], message[1]
    local_port, remote_port = struct.unpack_from(">HH", message, 4)
    size = 4 if family == socket.AF_INET else 16
    local, remote = message[8 : 8 + size], message[24 : 24 + size]
    _, receive, send, _, inode = struct.unpack_from("=IIIII", message, 52)
    addresses = (_host(local), local_port), (_host(remote), remote_port)
    queues = (0, 0) if state == LISTEN else (receive, send)
    info = netlink_attributes(message[72:]).get(_TCP_INFO, b"")
    is_known = len(info) >= _BYTES_AT + 16
    moved = sum(struct.unpack_from("=QQ", info, _BYTES_AT)) if is_known else 0
    return Inet(inode, state, *addresses, queues, moved)


def _host(data: bytes) -> str:
    """Return an address as text, one of IPv4 inside IPv6 as IPv4: the peer may use that."""
    address = ipaddress.ip_address(data)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _unix(message: bytes) -> Unix:
    state, (inode,) = message[2], struct.unpack_from("=I", message, 4)
    attributes = netlink_attributes(message[16:])
    peer = attributes.get(_UNIX_PEER)
    queues = attributes.get(_UNIX_QUEUES, bytes(8))
    pair = (0, 0) if state == LISTEN else struct.unpack_from("=II", queues)
    return Unix(inode, state, struct.unpack("=I", peer)[0] if peer else None, (pair[0], pair[1]))


def _inet_from(words: list[str], space: str) -> Inet:
    send, _, receive = words[4].partition(":")
    state = int(words[3], 16)
    queues = (0, 0) if state == LISTEN else (int(receive, 16), int(send, 16))
    local, remote = _address(words[1]), _address(words[2])
    return Inet(int(words[9]), state, local, remote, queues, space=space)


def _address(text: str) -> Address:
    host, _, port = text.partition(":")
    swap: Callable[[int], bytes] = struct.Struct("=I").pack
    data = b"".join(swap(int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    return _host(data), int(port, 16)
