"""Reset TCP connections of a network namespace, as ``ss -K`` does: sock_diag(7), SOCK_DESTROY."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Container

from pytest_multihost.launch.netns.netlink import netlink_dump, netlink_request

_BY_FAMILY, _DESTROY = 20, 21
_TCP = 6
_STATES = 0xFFFFFFFF & ~(1 << 10) & ~(1 << 7)  # all but those that listen or are closed
_ID = slice(4, 52)  # struct inet_diag_sockid in an entry: addresses, ports, cookie
_REMOTE_AT = 24
_TIMEOUT_S = 5.0
_FAMILIES = {socket.AF_INET: 4, socket.AF_INET6: 16}


def reset_connections(table: socket.socket, remote: Container[str]) -> int:
    """Reset all TCP connections to some addresses; return how many there were.

    Each socket fails with ECONNABORTED, and its peer is sent a reset.

    Args:
        table: Made by `open_sock_diag` in the namespace.
        remote: The addresses.

    Raises:
        OSError: The kernel cannot do that: it needs CONFIG_INET_DIAG_DESTROY.
    """
    table.settimeout(_TIMEOUT_S)
    count = 0
    for family, size in _FAMILIES.items():
        request = struct.pack("=BBBBI", family, _TCP, 0, 0, _STATES)  # struct inet_diag_req_v2
        for entry in netlink_dump(table, _BY_FAMILY, request + bytes(48)):
            found = ipaddress.ip_address(entry[_REMOTE_AT : _REMOTE_AT + size])
            mapped = getattr(found, "ipv4_mapped", None) or found
            if str(mapped) in remote:
                count += _destroy(table, request + entry[_ID])
    return count


def _destroy(table: socket.socket, request: bytes) -> bool:
    """Reset one connection; return whether it still existed."""
    try:
        netlink_request(table, _DESTROY, request)
    except FileNotFoundError:
        return False
    return True
