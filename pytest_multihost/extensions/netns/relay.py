"""A userspace relay of Ethernet frames between hosts: delayed, slowed, lossy, or unchanged.

The kernel's own tools for this, netem (tc-netem(8)) and packet filters, are modules that a kernel
may lack and that a container cannot load. A packet socket (packet(7)) on each cable needs nothing
optional: it reads the frames that a host sends, and writes frames that the host receives. With
PACKET_VNET_HDR a frame has its segmentation and checksum metadata, so 64 kB that TCP sends at once
are relayed as one frame.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_multihost.extensions.netns.effects import Shape

MAX_QUEUE_S = 1.0
"""How long frames may queue for a host's uplink; later ones are dropped, as in a switch."""

MAX_QUEUED_BYTES = 1 << 28
"""Maximum size of all frames that are delayed at a time; further ones are dropped."""

_ALL_PROTOCOLS, _NO_PROTOCOL = 0x0003, 0  # ETH_P_ALL
_SOL_PACKET, _IGNORE_OUTGOING, _VIRTUAL_HEADER = 263, 23, 15
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_HEADER = struct.Struct("=BBHHHH")  # struct virtio_net_hdr
_MAX_FRAME = _HEADER.size + (1 << 16) + 64
_BUFFER = 1 << 24
_BURST = 64
_BROADCAST = 1  # a bit in the first byte of an Ethernet address, also of multicasts


@dataclass(slots=True)
class Uplink:
    """The uplink of one host.

    Attributes:
        shape: Delay, loss and rate of its frames.
        chance: Selects the frames that are lost.
        free_s: When the last frame will have left, if there is a data rate.
    """

    shape: Shape = field(default_factory=Shape)
    chance: random.Random = field(default_factory=random.Random)
    free_s: float = 0.0

    def arrival_s(self, now_s: float, size: int) -> float | None:
        """Return the arrival time of a frame that is sent now; None if it is dropped."""
        if self.shape.loss and self.chance.random() < self.shape.loss:
            return None
        leaves_s = now_s
        if self.shape.bytes_per_s is not None:
            begins_s = max(now_s, self.free_s)
            if begins_s - now_s > MAX_QUEUE_S:
                return None
            leaves_s = self.free_s = begins_s + size / self.shape.bytes_per_s
        return leaves_s + self.shape.delay_s


@dataclass(slots=True)
class Relay:
    """Relays frames from host to host; a host is named by its index.

    Attributes:
        cables: The names of the hosts' cables in the bridge's namespace, in order.
        routes: For each sender, the hosts to which its frames are relayed.
    """

    cables: Sequence[str]
    hosts: Mapping[bytes, int]
    uplinks: Sequence[Uplink]
    routes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    _taps: dict[socket.socket, int] = field(default_factory=dict)
    _outputs: dict[int, socket.socket] = field(default_factory=dict)
    _queue: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    _count: int = 0
    _queued_bytes: int = 0

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait for; call `read` for each readable one."""
        return list(self._taps)

    def tap(self, hosts: Iterable[int]) -> None:
        """Also receive these hosts' frames from now on.

        Raises:
            OSError: The kernel refuses.
        """
        for host in set(hosts) - set(self._taps.values()):
            self._taps[_packet_socket(self.cables[host], _ALL_PROTOCOLS)] = host

    def set_routes(self, routes: Mapping[int, frozenset[int]], now_s: float) -> None:
        """Relay frames only on these routes from now on; frames already delayed still arrive."""
        self.routes = routes
        for tap, host in list(self._taps.items()):
            if host not in routes:
                self.read(tap, now_s)
                del self._taps[tap]
                tap.close()

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next delivery; None if no frame is queued."""
        return max(0.0, self._queue[0][0] - now_s) if self._queue else None

    def read(self, tap: socket.socket, now_s: float) -> None:
        """Read some of the frames that a host has sent."""
        host = self._taps[tap]
        with contextlib.suppress(BlockingIOError):
            for _ in range(_BURST):
                self._forward(host, tap.recv(_MAX_FRAME), now_s)

    def _forward(self, host: int, data: bytes, now_s: float) -> None:
        at = _HEADER.size
        reachable = self.routes.get(host, frozenset())
        destination = data[at : at + 6]
        is_broadcast = bool(data[at] & _BROADCAST)
        targets = [to for to in reachable if is_broadcast or to == self.hosts.get(destination)]
        if not targets:
            return
        arrives_s = self.uplinks[host].arrival_s(now_s, len(data) - at)
        if arrives_s is None:
            return
        for to in targets:
            if arrives_s <= now_s:
                self._deliver(to, data)
            elif self._queued_bytes + len(data) <= MAX_QUEUED_BYTES:
                self._count += 1
                self._queued_bytes += len(data)
                heapq.heappush(self._queue, (arrives_s, self._count, to, data))

    def deliver(self, now_s: float) -> None:
        """Deliver the frames whose arrival time has come."""
        while self._queue and self._queue[0][0] <= now_s:
            _, _, to, data = heapq.heappop(self._queue)
            self._queued_bytes -= len(data)
            self._deliver(to, data)

    def _deliver(self, to: int, data: bytes) -> None:
        if to not in self._outputs:
            self._outputs[to] = _packet_socket(self.cables[to], _NO_PROTOCOL)
        with contextlib.suppress(OSError):  # no room, or the host is gone: the frame is lost
            self._outputs[to].send(data)


def _packet_socket(interface: str, protocol: int) -> socket.socket:
    """Return a packet socket that sends into a cable, and receives frames that come out of it.

    Args:
        protocol: The protocol of the frames to receive.

    Raises:
        OSError: The kernel refuses.
    """
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(_SOL_PACKET, _VIRTUAL_HEADER, 1)
    made.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    for option in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
        with contextlib.suppress(OSError):  # needs privileges in the machine's own user namespace
            made.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    made.setblocking(False)  # noqa: FBT003 - the standard library's signature
    made.bind((interface, protocol))
    return made
