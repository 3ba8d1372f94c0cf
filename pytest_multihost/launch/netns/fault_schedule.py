"""What the server does about the faults of a world's network: when they begin, and when they end.

All go on until the test's body is over everywhere, or until their own time is up.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pytest_multihost.launch.netns.child import start_child
from pytest_multihost.launch.netns.files import set_names_known
from pytest_multihost.launch.netns.netfault_daemon import be_warden, wish
from pytest_multihost.launch.netns.network import HostNetwork
from pytest_multihost.launch.wire.packets import receive_packet, send_packet
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.fault import disturbs_network
from pytest_multihost.model.network import Disturbance, disturbance_of, merged
from pytest_multihost.model.spec import WorldSpec

_ANSWER_S = 10.0
"""How long the warden may take: milliseconds, unless the machine is out of order."""

_END_S = 1.0
"""How long it may take over its end before it is killed."""

_POLL_S = 0.001

Key = tuple[int, int]
"""A fault's place among the world's, and the rank that it has happened to."""


@dataclass(frozen=True, slots=True)
class _GoingOn:
    """A disturbance, and when it ends by itself."""

    disturbance: Disturbance
    until_s: float


@dataclass(slots=True)
class Traffic:
    """The network of one world as its faults want it.

    Attributes:
        network: The hosts.
        spec: The world.
        pid: The warden.
        stream: The connection to it.
    """

    network: HostNetwork
    spec: WorldSpec
    pid: int
    stream: socket.socket
    _going_on: dict[Key, _GoingOn] = field(default_factory=dict)

    def begin(self, index: int, rank: int, now_s: float) -> str:
        """Have a fault happen; return what went wrong, empty if nothing did.

        Args:
            index: Its place among the world's faults.
            rank: Who has passed its point.
            now_s: The time.
        """
        fault = self.spec.faults[index]
        disturbance = disturbance_of(fault, rank, self.spec)
        until_s = now_s + fault.params.get("heals_after", math.inf)
        self._going_on[index, rank] = _GoingOn(disturbance, until_s)
        return self._apply(disturbance.resets)

    def begin_rendezvous(self, now_s: float) -> None:
        """Have those faults happen that are in force before the ranks meet.

        Raises:
            LaunchError: One could not be performed.
        """
        for index, fault in enumerate(self.spec.faults):
            for rank in fault.ranks if fault.at.point == "rendezvous" else ():
                if error := self.begin(index, int(rank), now_s):
                    raise LaunchError(f"{fault!r} could not be performed", seen=error)

    def wait_s(self, now_s: float) -> float | None:
        """Return in how many seconds a fault ends by itself, None if none does."""
        until_s = min((each.until_s for each in self._going_on.values()), default=math.inf)
        return None if math.isinf(until_s) else max(0.0, until_s - now_s)

    def act(self, now_s: float) -> None:
        """End the faults whose time is up."""
        over = [key for key, each in self._going_on.items() if each.until_s <= now_s]
        for key in over:
            del self._going_on[key]
        if over:
            self._apply()

    def calm(self) -> str:
        """End all; return what went wrong, empty if nothing did."""
        is_disturbed = bool(self._going_on)
        self._going_on.clear()
        return self._apply() if is_disturbed else ""

    def close(self) -> None:
        """End the warden; it ends by itself when we hang up."""
        self.stream.close()
        deadline_s = time.monotonic() + _END_S
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline_s:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def _apply(self, resets: frozenset[int] = frozenset()) -> str:
        now = merged(each.disturbance for each in self._going_on.values())
        for host in self.network.hosts:
            is_known = host.index not in now.nameless
            set_names_known(self.network.folder, self.network.hosts, host, is_known=is_known)
        try:
            send_packet(self.stream, {**wish(now), "resets": sorted(resets)})
            answer = receive_packet(self.stream)
        except OSError as error:
            return f"whoever disturbs the network does not answer: {error}"
        return str(answer.message["error"]) if answer else "whoever disturbs the network has ended"


def direct(network: HostNetwork, spec: WorldSpec) -> Traffic | None:
    """Start the warden of a world that has faults of the network; None if it has none.

    Raises:
        LaunchError: The kernel lacks what it needs.
    """
    if not disturbs_network(spec.faults):
        return None
    pid, stream = start_child(partial(be_warden, network, spec.seed))
    stream.settimeout(_ANSWER_S)
    try:
        told: Mapping[str, str] = packet.message if (packet := receive_packet(stream)) else {}
    except OSError as error:
        told = {"error": str(error)}
    traffic = Traffic(network, spec, pid, stream)
    if told.get("kind") != "ready":
        traffic.close()
        seen = told.get("error", "The process that was to do it has ended.")
        raise LaunchError("the network between the world's hosts cannot be disturbed", seen=seen)
    return traffic
