"""Changes links, addresses and connections of network namespaces by netlink requests.

A process that holds the sockets of a host can configure its links and reset its connections without
entering its namespace; see `netlink`.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field

from pytest_multihost.core.netlink import attribute, netlink_dump, netlink_request

LOOPBACK = 1
"""Index of the loopback interface, in every network namespace."""

ETHERNET = 100
"""Index of a host's interface, and of the bridge; kernels use 2, 3, ... for their own tunnels."""

_CREATE, _EXCLUSIVE, _REPLACE = 0x400, 0x200, 0x100  # NLM_F_*: flags for new objects
_TIMEOUT_S = 5.0

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

_BY_FAMILY, _DESTROY = 20, 21
_TCP = 6
_STATES = 0xFFFFFFFF & ~(1 << 10) & ~(1 << 7)  # all except listening and closed sockets
_ID = slice(4, 52)  # struct inet_diag_sockid in an entry: addresses, ports, cookie
_REMOTE_AT = 24
_ADDRESS_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}


@dataclass(slots=True)
class Links:
    """The links of the network namespace in which this was created.

    Every method waits until the kernel is done, and raises OSError if it refuses.
    """

    _socket: socket.socket = field(
        default_factory=lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    )

    def __post_init__(self) -> None:
        self._socket.settimeout(_TIMEOUT_S)

    def add_bridge(self, name: str, index: int) -> None:
        """Add a bridge without multicast snooping, which would send its own queries."""
        data = attribute(_DATA, attribute(_SNOOPING, b"\0"))
        info = attribute(_INFO, attribute(_KIND, b"bridge\0") + data)
        body = _link(index) + _text(_NAME, name) + info
        netlink_request(self._socket, _NEW_LINK, body, _CREATE | _EXCLUSIVE)

    def add_cable(self, name: str, index: int, *, bridge: int, peer: str, namespace: int) -> None:
        """Add a cable, which is a veth(4) pair: one end in a bridge, its peer in another namespace.

        Args:
            name: Name of the end in the bridge.
            index: Index of the end in the bridge.
            peer: Name of the peer; its index is `ETHERNET`.
            namespace: File descriptor of the peer's network namespace.
        """
        inside = attribute(_NAMESPACE_FD, struct.pack("=I", namespace))
        pair = attribute(_PEER, _link(ETHERNET) + _text(_NAME, peer) + inside)
        info = attribute(_INFO, attribute(_KIND, b"veth\0") + attribute(_DATA, pair))
        master = attribute(_MASTER, struct.pack("=I", bridge))
        body = _link(index) + _text(_NAME, name) + master + info
        netlink_request(self._socket, _NEW_LINK, body, _CREATE | _EXCLUSIVE)

    def disable_ipv6(self, index: int) -> None:
        """Give an interface no IPv6 address, because it would look for routers for seconds."""
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
        """Move an interface into a bridge; 0: out of its bridge."""
        body = _link(index) + attribute(_MASTER, struct.pack("=I", bridge))
        netlink_request(self._socket, _SET_LINK, body)

    def send_single_packets(self, index: int) -> None:
        """Make an interface split large packets itself, into packets of its link's size."""
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

    Each socket fails with ECONNABORTED, and its peer gets a reset.

    Args:
        table: A socket from `netlink.open_sock_diag` in the namespace.

    Raises:
        OSError: The kernel lacks CONFIG_INET_DIAG_DESTROY.
    """
    table.settimeout(_TIMEOUT_S)
    for family, size in _ADDRESS_BYTES.items():
        request = struct.pack("=BBBBI", family, _TCP, 0, 0, _STATES)  # struct inet_diag_req_v2
        for entry in netlink_dump(table, _BY_FAMILY, request + bytes(48)):
            found = ipaddress.ip_address(entry[_REMOTE_AT : _REMOTE_AT + size])
            mapped = getattr(found, "ipv4_mapped", None) or found
            if str(mapped) in remote:
                with suppress(FileNotFoundError):  # closed meanwhile
                    netlink_request(table, _DESTROY, request + entry[_ID])
