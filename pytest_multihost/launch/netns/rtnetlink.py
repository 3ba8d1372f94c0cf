"""Links and addresses of a network namespace, through rtnetlink(7).

A socket belongs for ever to the namespace in which it was made, so whoever holds it can arrange
that namespace's links from anywhere. Written by hand: the `ip` program takes a process for each
namespace, and a library for this takes longer to import than four hosts take to be made.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field

LOOPBACK = 1
"""Index of the loopback interface, in every network namespace."""

ETHERNET = 100
"""Index of a host's interface, and of the bridge; kernels put tunnels of their own at 2, 3, ..."""

_ERROR, _NEW_LINK, _SET_LINK, _NEW_ADDRESS = 2, 16, 19, 20
_NEW_NEIGHBOUR, _DESTINATION, _ETHERNET_ADDRESS, _PERMANENT = 28, 1, 2, 0x80
_REQUEST, _ACKNOWLEDGE, _REPLACE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_UP = 0x1
_NAME, _MASTER, _INFO, _SPACE, _OF_FAMILIES = 3, 10, 18, 28, 26
_KIND, _DATA = 1, 2
_PEER = 1  # of a veth
_SNOOPING = 23  # of a bridge
_MAX_SEGMENTS = 40  # of what is split only when it is sent (generic segmentation offload)
_GENERATION, _GENERATE_NONE = 8, 1  # of addresses of IPv6
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBi")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_LOCAL = 2
_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Links:
    """The links of the network namespace in which this was made."""

    _socket: socket.socket = field(
        default_factory=lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    )
    _sequence: int = 0

    def __post_init__(self) -> None:
        self._socket.settimeout(_TIMEOUT_S)

    def add_bridge(self, name: str, index: int) -> None:
        """Add a bridge. It does not listen to who wants which multicast: there is no such noise."""
        data = _attribute(_DATA, _attribute(_SNOOPING, b"\0"))
        info = _attribute(_INFO, _attribute(_KIND, b"bridge\0") + data)
        self._ask(_NEW_LINK, _link(index) + _text(_NAME, name) + info, _CREATE | _EXCLUSIVE)

    def add_cable(self, name: str, index: int, *, bridge: int, far: str, space: int) -> None:
        """Plug a cable (veth(4)) into a bridge; its far end appears in another namespace.

        Args:
            name: Of the near end.
            index: Of the near end.
            bridge: Index of the bridge.
            far: Name of the far end; its index is `ETHERNET`.
            space: Descriptor of the network namespace of the far end.
        """
        place = _attribute(_SPACE, struct.pack("=I", space))
        peer = _attribute(_PEER, _link(ETHERNET) + _text(_NAME, far) + place)
        info = _attribute(_INFO, _attribute(_KIND, b"veth\0") + _attribute(_DATA, peer))
        master = _attribute(_MASTER, struct.pack("=I", bridge))
        message = _link(index) + _text(_NAME, name) + master + info
        self._ask(_NEW_LINK, message, _CREATE | _EXCLUSIVE)

    def keep_quiet(self, index: int) -> None:
        """Have an interface speak no IPv6 by itself: it would look for routers for seconds."""
        mode = _attribute(_GENERATION, bytes([_GENERATE_NONE]))
        families = _attribute(_OF_FAMILIES, _attribute(socket.AF_INET6, mode))
        with suppress(OSError):  # a kernel without IPv6
            self._ask(_SET_LINK, _link(index) + families)

    def add_address(self, index: int, address: str, prefix: int) -> None:
        """Give an interface an IPv4 address."""
        message = _ADDRESS.pack(socket.AF_INET, prefix, 0, 0, index)
        self._ask(
            _NEW_ADDRESS,
            message + _attribute(_LOCAL, ipaddress.ip_address(address).packed),
            _CREATE | _EXCLUSIVE,
        )

    def plug(self, index: int, bridge: int) -> None:
        """Plug an interface into a bridge, out of the one where it was; 0 is none."""
        self._ask(_SET_LINK, _link(index) + _attribute(_MASTER, struct.pack("=I", bridge)))

    def send_single_packets(self, index: int) -> None:
        """Have an interface send packets of the size of its link; large ones are split before."""
        self._ask(_SET_LINK, _link(index) + _attribute(_MAX_SEGMENTS, struct.pack("=I", 1)))

    def add_neighbour(self, index: int, address: str, ethernet: bytes) -> None:
        """Let an IPv4 address be known for good: nobody has to be asked for it."""
        message = _NEIGHBOUR.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
        self._ask(
            _NEW_NEIGHBOUR,
            message
            + _attribute(_DESTINATION, ipaddress.ip_address(address).packed)
            + _attribute(_ETHERNET_ADDRESS, ethernet),
            _CREATE | _REPLACE,
        )

    def set_up(self, index: int) -> None:
        """Switch an interface on."""
        self._ask(_SET_LINK, _LINK.pack(0, 0, index, _UP, _UP))

    def fileno(self) -> int:
        """Return the descriptor that is needed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let go of the namespace."""
        self._socket.close()

    def _ask(self, kind: int, message: bytes, flags: int = 0) -> None:
        """Ask for something and wait until it is done.

        Raises:
            OSError: It was refused.
        """
        self._sequence += 1
        flags |= _REQUEST | _ACKNOWLEDGE
        size = _HEADER.size + len(message)
        self._socket.send(_HEADER.pack(size, kind, flags, self._sequence, 0) + message)
        while True:
            answer = self._socket.recv(1 << 16)
            _, kind, _, sequence, _ = _HEADER.unpack_from(answer)
            if kind == _ERROR and sequence == self._sequence:
                break
        code = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if code:
            raise OSError(code, f"rtnetlink: {os.strerror(code)}")


def _link(index: int) -> bytes:
    return _LINK.pack(0, 0, index, 0, 0)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _attribute(kind: int, content: bytes) -> bytes:
    size = 4 + len(content)
    return struct.pack("=HH", size, kind) + content + bytes(-size % 4)
