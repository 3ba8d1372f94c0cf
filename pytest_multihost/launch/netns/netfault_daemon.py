"""The process that disturbs the network of a world's hosts; it lives in the bridge's namespace.

There is one in a world that has faults of the network, and none in others. Where a cut goes both
ways, it plugs the cables into bridges that are not connected, and the kernel does the rest. What
else hosts may still send each other it carries by hand, frame by frame. It ends with the server,
and with it goes all that it has done: no frame leaves the namespace.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pytest_multihost.launch.netns import namespaces as kernel
from pytest_multihost.launch.netns.build import BRIDGE
from pytest_multihost.launch.netns.links import ETHERNET, Links
from pytest_multihost.launch.netns.netlink import open_sock_diag
from pytest_multihost.launch.netns.network import HostNetwork
from pytest_multihost.launch.netns.relay import Relay, Uplink
from pytest_multihost.launch.netns.reset_connections import reset_connections
from pytest_multihost.launch.server.reaper import die_with_parent
from pytest_multihost.launch.wire.packets import receive_packet, send_packet
from pytest_multihost.model.hosts import Host
from pytest_multihost.model.network import Disturbance, Shape, bridge_segments, relay_routes

_ORPHANS = "/proc/sys/net/ipv4/tcp_orphan_retries"
_GET_ETHERNET_ADDRESS = 0x8927  # SIOCGIFHWADDR, netdevice(7)
_MORE_BRIDGES = 20_000
"""Index of the first bridge beside the one that is always there."""


@dataclass(slots=True)
class _HostSide:
    """What is reached on one host, from wherever this process is.

    Attributes:
        host: Which.
        ethernet: Its Ethernet address.
        links: Its links.
        table: Its table of sockets.
        retries: A file that says how often its kernel sends again what ended processes have left.
    """

    host: Host
    ethernet: bytes
    links: Links
    table: socket.socket
    retries: int


@dataclass(slots=True)
class _Warden:
    """What this process knows and holds.

    Attributes:
        sides: The hosts.
        links: The bridge's.
        frames: Those that it carries by hand.
        plugged: The bridge that each host's cable is plugged into; 0 is none.
        bridges: Those that there are.
    """

    sides: Sequence[_HostSide]
    links: Links
    frames: Relay
    plugged: dict[int, int]
    bridges: list[int] = field(default_factory=lambda: [ETHERNET])

    def disturb(self, wanted: Disturbance) -> None:
        """Have the network as it is wanted from now on.

        Raises:
            OSError: The kernel refuses.
        """
        parts = bridge_segments(len(self.sides), wanted)
        ways = relay_routes(parts, wanted)
        for host, shape in wanted.shapes.items():
            if shape.loss or shape.bytes_per_s is not None:
                self.sides[host].links.send_single_packets(ETHERNET)
        for side, line in zip(self.sides, self.frames.uplinks, strict=True):
            line.shape = wanted.shapes.get(side.host.index, Shape())
        # Listened to before it is unplugged: what is sent meanwhile may come twice, but comes.
        self.frames.tap(ways)
        self.frames.routes = ways
        self._plug(parts)
        self.frames.set_routes(ways, time.monotonic())

    def _plug(self, parts: Sequence[Sequence[int]]) -> None:
        """Plug the cables of each part into a bridge of its own; one that is alone into none."""
        for number, part in enumerate(parts):
            bridge = self._bridge(number) if len(part) > 1 else 0
            for host in part:
                if self.plugged[host] != bridge:
                    self.links.plug(ETHERNET + 1 + host, bridge)
                    self.plugged[host] = bridge

    def _bridge(self, number: int) -> int:
        if number == len(self.bridges):
            index = _MORE_BRIDGES + number
            self.links.add_bridge(f"{BRIDGE}-{number}", index)
            self.links.disable_ipv6(index)
            self.links.set_up(index)
            self.bridges.append(index)
        return self.bridges[number]

    def reset(self, hosts: Sequence[int]) -> None:
        """Reset the connections between some hosts and all others.

        Raises:
            OSError: The kernel refuses.
        """
        for index in hosts:
            others = {side.host.address for side in self.sides if side.host.index != index}
            reset_connections(self.sides[index].table, others)


def be_warden(network: HostNetwork, seed: int, stream: socket.socket) -> None:
    """Do what the server asks for until it ends.

    Args:
        network: The world's.
        seed: Decides which frames are lost.
        stream: The connection to the server; all other descriptors are closed.
    """
    network.become_owner()
    signal.signal(signal.SIGTERM, _leave)
    die_with_parent(os.getppid(), signal.SIGTERM)
    sides = [_side(host, network.spaces[host.index]) for host in network.hosts]
    kernel.join(network.bridge, kernel.NEW_NETWORK)
    links = Links()
    for side in sides:
        for other in sides:
            if other is not side:
                side.links.add_neighbour(ETHERNET, other.host.address, other.ethernet)
    lines = [Uplink(chance=random.Random(f"{seed}/{host.name}")) for host in network.hosts]
    names = [host.name for host in network.hosts]
    frames = Relay(names, {side.ethernet: side.host.index for side in sides}, lines)
    plugged = dict.fromkeys(range(len(sides)), ETHERNET)
    warden = _Warden(sides, links, frames, plugged)
    keep = {stream.fileno(), links.fileno()}
    for side in sides:
        keep |= {side.links.fileno(), side.table.fileno(), side.retries}
    _close_others(keep)
    send_packet(stream, {"kind": "ready"})
    try:
        while _serve_once(warden, stream):
            pass
    finally:
        _give_up(sides)


def _leave(*_: object) -> NoReturn:
    raise SystemExit


def _give_up(sides: Sequence[_HostSide]) -> None:
    """Let the kernel give up what dead ranks have not got rid of: the network was cut.

    It would try for two minutes, and keep the network so long.
    """
    for side in sides:
        os.write(side.retries, b"1")


def _serve_once(warden: _Warden, stream: socket.socket) -> bool:
    """Carry frames and serve requests; return whether to go on."""
    frames = warden.frames
    frames.deliver(time.monotonic())
    ready, _, _ = select.select(
        [stream, *frames.sockets()], [], [], frames.wait_s(time.monotonic())
    )
    for each in ready:
        if each is not stream:
            frames.read(each, time.monotonic())
    if stream not in ready:
        return True
    packet = receive_packet(stream)
    if packet is None:
        return False
    send_packet(stream, {"kind": "done", "error": _answer(warden, packet.message)})
    return True


def _answer(warden: _Warden, header: Mapping[str, Any]) -> str:
    """Do what is asked for, and return what went wrong."""
    try:
        warden.disturb(_wanted(header))
        warden.reset(header["resets"])
    except OSError as error:
        return f"the kernel refuses: {error.strerror or error}"
    return ""


def wish(wanted: Disturbance) -> dict[str, Any]:
    """Return what to tell a warden."""
    shapes = {
        str(host): [shape.delay_s, shape.loss, shape.bytes_per_s]
        for host, shape in wanted.shapes.items()
    }
    cuts = sorted(wanted.cuts)
    return {"kind": "disturb", "cuts": cuts, "shapes": shapes, "resets": sorted(wanted.resets)}


def _wanted(header: Mapping[str, Any]) -> Disturbance:
    cuts = frozenset((sender, to) for sender, to in header["cuts"])
    shapes = {int(host): Shape(*given) for host, given in header["shapes"].items()}
    return Disturbance(cuts=cuts, shapes=shapes)


def _side(host: Host, space: int) -> _HostSide:
    """Visit a host, and return what is reached on it from elsewhere."""
    kernel.join(space, kernel.NEW_NETWORK)
    table = open_sock_diag()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", host.interface.encode())
        ethernet = fcntl.ioctl(probe, _GET_ETHERNET_ADDRESS, request)[18:24]
    return _HostSide(host, ethernet, Links(), table, os.open(_ORPHANS, os.O_WRONLY))


def _close_others(keep: set[int]) -> None:
    """Close what was inherited from the server: no end of a rank's connection must live on here."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:  # noqa: PLR2004 - the standard streams
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                continue
