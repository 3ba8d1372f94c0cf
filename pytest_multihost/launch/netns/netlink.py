"""netlink(7): how requests to the kernel's networking are framed, and its answers read.

A netlink socket belongs for ever to the network namespace in which it was created, whichever
process holds it. So a process that holds a host's sockets can configure that host's links
(`links`), reset its connections (`reset_connections`) and read its socket tables
(`watch.kernel.sockets`) from anywhere, without entering the namespace.

Written by hand: the programs `ip` and `ss` take a process for each namespace, and a library takes
longer to import than four hosts take to be created.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Iterator

CREATE, EXCLUSIVE, REPLACE = 0x400, 0x200, 0x100
"""NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE: what a request may do about an object."""

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG, sock_diag(7)
_REQUEST, _ACKNOWLEDGE, _DUMP, _INTERRUPTED = 0x1, 0x4, 0x300, 0x10
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
_BUFFER = 1 << 17
_TRIES = 3
_sequence = itertools.count(1)
"""Tells the answers to one request from late answers to an earlier one that has timed out."""


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
        OSError: It was refused, or the table never stood still.
        TimeoutError: The socket has a timeout, and no answer came.
    """
    for _ in range(_TRIES):
        if (found := _dump_once(netlink, kind, body)) is not None:
            return found
    raise OSError("the kernel's table kept changing")


def _dump_once(netlink: socket.socket, kind: int, body: bytes) -> list[bytes] | None:
    """Return the entries of a table; None if it changed meanwhile, so that some may be missing."""
    sequence = _send(netlink, kind, _REQUEST | _DUMP, body)
    found: list[bytes] = []
    is_changed = False
    for answer, flags, message in _answers(netlink, sequence):
        is_changed |= bool(flags & _INTERRUPTED)
        if answer == _DONE:
            break
        if answer == _ERROR:
            _check(message)
        found.append(message)
    return None if is_changed else found


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
