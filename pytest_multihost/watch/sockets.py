"""The sockets of this machine and who is at their other ends, from the kernel's tables."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

LISTEN = 10
"""The state of a socket that waits for connections, of TCP and of unix sockets."""

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_INTERRUPTED = 0x10
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_UNIX_PEER, _UNIX_QUEUES = 2, 4
_TCP_INFO = 2
_WITH_INFO = 1 << _TCP_INFO - 1
_BYTES_AT = 120  # in struct tcp_info: bytes acknowledged, bytes received
_TIMEOUT_S = 1.0
_TRIES = 3

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Inet:
    """One socket of TCP or UDP. Its inode is 0 until it is accepted, and after it was closed."""

    inode: int
    state: int
    local: Address
    remote: Address
    queues: tuple[int, int]
    bytes_moved: int = 0


@dataclass(frozen=True, slots=True)
class Unix:
    """One unix socket; `peer` is the inode of the other end, 0 if it has none yet, None if none."""

    inode: int
    state: int
    peer: int | None
    queues: tuple[int, int]


def inet_sockets(protocol: int) -> list[Inet]:
    """Return all sockets of a protocol in our own network namespace.

    Raises:
        OSError: The kernel does not tell.
    """
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        request = struct.pack("=BBBBI48x", family, protocol, _WITH_INFO, 0, 0xFFFFFFFF)
        found += [_inet(message) for message in _dump(request)]
    return found


def unix_sockets() -> list[Unix]:
    """Return all unix sockets of our own network namespace.

    Raises:
        OSError: The kernel does not tell.
    """
    show = 1 << _UNIX_PEER | 1 << _UNIX_QUEUES
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show, 0, 0)
    return [_unix(message) for message in _dump(request)]


def inet_sockets_from(table: str) -> list[Inet]:
    """Return the sockets in the text of a ``/proc/PID/net/tcp``, ``tcp6``, ``udp`` or ``udp6``."""
    return [_inet_from(line.split()) for line in table.splitlines()[1:]]


def _dump(request: bytes) -> list[bytes]:
    for _ in range(_TRIES):
        found = _dump_once(request)
        if found is not None:
            return found
    raise OSError("the kernel's table of sockets kept changing")


def _dump_once(request: bytes) -> list[bytes] | None:
    """Return the messages of one dump, None if the table changed meanwhile."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with closing(socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        size = _HEADER.size + len(request)
        netlink.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
        found: list[bytes] = []
        is_changed = False
        while True:
            for kind, flags, message in _messages(netlink.recv(1 << 17)):
                is_changed |= bool(flags & _INTERRUPTED)
                if kind == _DONE:
                    return None if is_changed else found
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", message)[0], "no table of sockets")
                found.append(message)


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(data):
        size, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        yield kind, flags, data[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def _inet(message: bytes) -> Inet:
    family, state = message[0], message[1]
    local_port, remote_port = struct.unpack_from(">HH", message, 4)
    size = 4 if family == socket.AF_INET else 16
    local, remote = message[8 : 8 + size], message[24 : 24 + size]
    _, receive, send, _, inode = struct.unpack_from("=IIIII", message, 52)
    ends = (_host(local), local_port), (_host(remote), remote_port)
    queues = (0, 0) if state == LISTEN else (receive, send)
    return Inet(inode, state, *ends, queues, _bytes_moved(message[72:]))


def _bytes_moved(data: bytes) -> int:
    info = dict(_attributes(data)).get(_TCP_INFO, b"")
    return sum(struct.unpack_from("=QQ", info, _BYTES_AT)) if len(info) >= _BYTES_AT + 16 else 0


def _host(data: bytes) -> str:
    """Return an address as text, one of IPv4 inside IPv6 as IPv4: the other end may use that."""
    address = ipaddress.ip_address(data)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _unix(message: bytes) -> Unix:
    state, (inode,) = message[2], struct.unpack_from("=I", message, 4)
    attributes = dict(_attributes(message[16:]))
    peer = attributes.get(_UNIX_PEER)
    queues = attributes.get(_UNIX_QUEUES, bytes(8))
    pair = (0, 0) if state == LISTEN else struct.unpack_from("=II", queues)
    return Unix(inode, state, struct.unpack("=I", peer)[0] if peer else None, (pair[0], pair[1]))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        yield kind, data[at + _ATTRIBUTE.size : at + size]
        at += max((size + 3) & ~3, _ATTRIBUTE.size)


def _inet_from(words: list[str]) -> Inet:
    send, _, receive = words[4].partition(":")
    state = int(words[3], 16)
    queues = (0, 0) if state == LISTEN else (int(receive, 16), int(send, 16))
    return Inet(int(words[9]), state, _address(words[1]), _address(words[2]), queues)


def _address(text: str) -> Address:
    host, _, port = text.partition(":")
    swap: Callable[[int], bytes] = struct.Struct("=I").pack
    data = b"".join(swap(int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    return _host(data), int(port, 16)
