"""Carry frames between hosts by hand: late, slowly, not all of them, or just as they are.

That takes a packet socket on each cable, and nothing that a kernel may lack. Frames come with what
the kernel knows of them (packet(7), PACKET_VNET_HDR), so large ones are carried in one piece.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_multihost.model.network import Shape

MAX_QUEUE_S = 1.0
"""How long a host's frames may wait for its line; what comes then is dropped, as switches do."""

MAX_WAITING = 1 << 28
"""Bytes of frames that may wait altogether; what comes then is dropped."""

_ALL = 0x0003
_SOL_PACKET, _IGNORE_OUTGOING, _VIRTUAL_HEADER = 263, 23, 15
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_HEADER = struct.Struct("=BBHHHH")
_MAX_FRAME = _HEADER.size + (1 << 16) + 64
_BUFFER = 1 << 24
_BURST = 64
_BROADCAST = 1


@dataclass(slots=True)
class Line:
    """The way out of one host.

    Attributes:
        shape: What happens to its frames.
        chance: Decides which frames are lost.
        free_s: When the last frame will have left, where there is a limit.
    """

    shape: Shape = field(default_factory=Shape)
    chance: random.Random = field(default_factory=random.Random)
    free_s: float = 0.0

    def arrival_s(self, now_s: float, size: int) -> float | None:
        """Return when a frame that is sent now is to arrive, None if never."""
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
class Frames:
    """Frames on their way from host to host.

    Attributes:
        cables: The names of the hosts' cables, in order.
        places: Which host has which Ethernet address.
        lines: The ways out of hosts.
        ways: For each host, where its frames are carried by hand.
    """

    cables: Sequence[str]
    places: Mapping[bytes, int]
    lines: Sequence[Line]
    ways: Mapping[int, frozenset[int]] = field(default_factory=dict)
    _into: dict[int, socket.socket] = field(default_factory=dict)
    _out_of: dict[socket.socket, int] = field(default_factory=dict)
    _waiting: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    _count: int = 0
    _bytes: int = 0

    def watched(self) -> list[socket.socket]:
        """Return the cables from which frames have to be taken."""
        return list(self._out_of)

    def listen(self, hosts: Iterable[int]) -> None:
        """Get what these hosts send from now on, besides what was got before.

        Raises:
            OSError: The kernel refuses.
        """
        for host in set(hosts) - set(self._out_of.values()):
            self._out_of[_tap(self.cables[host], _ALL)] = host

    def carry(self, ways: Mapping[int, frozenset[int]], now_s: float) -> None:
        """Carry frames on these ways and on no other; those on their way arrive."""
        self.ways = ways
        for cable, host in list(self._out_of.items()):
            if host not in ways:
                self.take(cable, now_s)
                del self._out_of[cable]
                cable.close()

    def wait_s(self, now_s: float) -> float | None:
        """Return in how many seconds the next frame is to arrive, None if none is on its way."""
        return max(0.0, self._waiting[0][0] - now_s) if self._waiting else None

    def take(self, cable: socket.socket, now_s: float) -> None:
        """Take some of what a host has sent."""
        host = self._out_of[cable]
        with contextlib.suppress(BlockingIOError):
            for _ in range(_BURST):
                self._send_on(host, cable.recv(_MAX_FRAME), now_s)

    def _send_on(self, host: int, data: bytes, now_s: float) -> None:
        at = _HEADER.size
        ways = self.ways.get(host, frozenset())
        is_for_all = bool(data[at] & _BROADCAST)
        targets = [to for to in ways if is_for_all or to == self.places.get(data[at : at + 6])]
        if not targets:
            return
        arrives_s = self.lines[host].arrival_s(now_s, len(data) - at)
        for to in targets if arrives_s is not None else ():
            self._put(arrives_s or now_s, to, data, now_s)

    def _put(self, arrives_s: float, to: int, data: bytes, now_s: float) -> None:
        if arrives_s <= now_s:
            self._deliver(to, data)
        elif self._bytes + len(data) <= MAX_WAITING:
            self._count += 1
            self._bytes += len(data)
            heapq.heappush(self._waiting, (arrives_s, self._count, to, data))

    def deliver(self, now_s: float) -> None:
        """Deliver what is to have arrived by now."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, _, to, data = heapq.heappop(self._waiting)
            self._bytes -= len(data)
            self._deliver(to, data)

    def _deliver(self, to: int, data: bytes) -> None:
        if to not in self._into:
            self._into[to] = _tap(self.cables[to], 0)
        with contextlib.suppress(OSError):  # no room, or the host is gone: it is lost
            self._into[to].send(data)


def _tap(interface: str, protocol: int) -> socket.socket:
    """Return a packet socket that sends into a cable, and gets frames that come out of it.

    Args:
        interface: The cable's name.
        protocol: Of the frames that it gets; none with 0.

    Raises:
        OSError: The kernel refuses.
    """
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(_SOL_PACKET, _VIRTUAL_HEADER, 1)
    made.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    for option in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
        with contextlib.suppress(OSError):  # takes privileges on the machine itself
            made.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    made.setblocking(False)  # noqa: FBT003 - the standard library's signature
    made.bind((interface, protocol))
    return made
