"""Send netlink(7) requests to the kernel, read the answers, and open sockets for socket tables.

A netlink socket always belongs to the network namespace in which it was created, even in another
process. So a process that holds a host's sockets can read that host's socket tables
(`watch.kernel.sockets`), and configure its links, without entering the namespace.

No program or library is used: `ip` and `ss` need a process for each namespace, and importing a
library takes longer than creating four hosts.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, nullcontext

_REQUEST, _ACKNOWLEDGE, _DUMP, _INTERRUPTED = 0x1, 0x4, 0x300, 0x10
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG, sock_diag(7)
_SOCK_DIAG_BY_FAMILY = 20
_TABLE_S = 1.0
"""How long the kernel may take to answer with a part of a socket table."""

LISTEN = 10
"""The state of a TCP or unix socket that waits for connections, in net/tcp_states.h of Linux."""

_BUFFER = 1 << 17
_TRIES = 3
_sequence = itertools.count(1)
"""Numbers of requests: late answers to an earlier request that has timed out have another."""


def open_sock_diag() -> socket.socket:
    """Return a socket that reads the socket tables of the network namespace of this process."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    return socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG)


def dump_sockets(
    request: bytes, table: socket.socket | None = None, kind: int = _SOCK_DIAG_BY_FAMILY
) -> list[bytes]:
    """Return the entries of a socket table that a request of sock_diag(7) asks for.

    Args:
        table: A socket from `open_sock_diag`; None: one of this process's network namespace.
        kind: The type of the request.

    Raises:
        OSError: The kernel refuses.
    """
    with nullcontext(table) if table is not None else closing(open_sock_diag()) as netlink:
        netlink.settimeout(_TABLE_S)
        return netlink_dump(netlink, kind, request)


def netlink_request(netlink: socket.socket, kind: int, body: bytes, flags: int = 0) -> None:
    """Make a request, and wait until the kernel has carried it out.

    Raises:
        OSError: It was refused, with the kernel's error number.
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
        is_changed = False  # if the table changes meanwhile, entries may be missing
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
    """Yield type, flags and content of each answer to a request, without end."""
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
    at, head, unpack = 0, _ATTRIBUTE.size, _ATTRIBUTE.unpack_from
    last = len(data) - head
    while at <= last:
        size, kind = unpack(data, at)
        found[kind] = data[at + head : at + size]
        at += _aligned(max(size, head))
    return found


def _aligned(size: int) -> int:
    return (size + 3) & ~3
