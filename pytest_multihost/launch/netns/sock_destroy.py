"""Reset TCP connections of a network namespace, as ``ss -K`` does: sock_diag(7), SOCK_DESTROY."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Container

_BY_FAMILY, _DESTROY = 20, 21
_REQUEST, _ACKNOWLEDGE, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_TCP = 6
_STATES = 0xFFFFFFFF & ~(1 << 10) & ~(1 << 7)  # all but those that listen or are closed
_ID = slice(4, 52)  # of a message: addresses, ports, cookie
_REMOTE_AT = 24
_TIMEOUT_S = 5.0
_BUFFER = 1 << 17
_FAMILIES = {socket.AF_INET: 4, socket.AF_INET6: 16}


def reset_connections(table: socket.socket, remote: Container[str]) -> int:
    """Reset all TCP connections to some addresses; return how many there were.

    Each socket fails with ECONNABORTED, and its other end is sent a reset.

    Args:
        table: A netlink socket of the kind NETLINK_SOCK_DIAG, made in their namespace.
        remote: The addresses.

    Raises:
        OSError: The kernel does not do that: it wants CONFIG_INET_DIAG_DESTROY.
    """
    table.settimeout(_TIMEOUT_S)
    count = 0
    for family, size in _FAMILIES.items():
        for message in _dump(table, family):
            found = ipaddress.ip_address(message[_REMOTE_AT : _REMOTE_AT + size])
            mapped = getattr(found, "ipv4_mapped", None) or found
            if str(mapped) in remote:
                count += _destroy(table, family, message[_ID])
    return count


def _dump(table: socket.socket, family: int) -> list[bytes]:
    request = struct.pack("=BBBBI48x", family, _TCP, 0, 0, _STATES)
    _send(table, _BY_FAMILY, _REQUEST | _DUMP, request)
    found: list[bytes] = []
    while True:
        data = table.recv(_BUFFER)
        while data:
            size, kind, *_ = _HEADER.unpack_from(data)
            message, data = data[_HEADER.size : size], data[(size + 3) & ~3 :]
            if kind == _DONE:
                return found
            if kind == _ERROR:
                _check(message)
            found.append(message)


def _destroy(table: socket.socket, family: int, identity: bytes) -> bool:
    """Reset one connection; return whether it was still there."""
    request = struct.pack("=BBBBI", family, _TCP, 0, 0, _STATES) + identity
    _send(table, _DESTROY, _REQUEST | _ACKNOWLEDGE, request)
    try:
        _check(table.recv(_BUFFER)[_HEADER.size :])
    except FileNotFoundError:
        return False
    return True


def _send(table: socket.socket, kind: int, flags: int, request: bytes) -> None:
    table.send(_HEADER.pack(_HEADER.size + len(request), kind, flags, 0, 0) + request)


def _check(message: bytes) -> None:
    code = -struct.unpack_from("=i", message)[0]
    if code:
        raise OSError(code, f"sock_diag: {os.strerror(code)}")
