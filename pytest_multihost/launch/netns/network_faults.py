"""The faults of a world's network, as the server performs them: when they begin, when they heal.

A fault heals when its own time is up, or with all others when the test's body is over on all ranks.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from pytest_multihost.launch.netns.build import set_names_known, start_child
from pytest_multihost.launch.netns.netfault_daemon import (
    FromDaemon,
    SetDisturbance,
    run_netfault_daemon,
)
from pytest_multihost.launch.netns.network import HostNetwork
from pytest_multihost.launch.wire import receive_packet, send_packet
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.fault import disturbs_network
from pytest_multihost.model.network import Disturbance, disturbance_of, merged
from pytest_multihost.model.spec import WorldSpec

_ANSWER_S = 10.0
"""Timeout for the daemon's answer; normally it takes milliseconds."""

_END_S = 1.0
"""How long the daemon may take to end before it is killed."""

_POLL_S = 0.001


@dataclass(slots=True)
class NetworkFaults:
    """The faults of one world's network.

    Attributes:
        network: The hosts.
        spec: The world.
        pid: The netfault daemon's process id.
        connection: The connection to the daemon.
    """

    network: HostNetwork
    spec: WorldSpec
    pid: int
    connection: socket.socket
    # By the fault's index among the world's faults and the rank that triggered it: with the time at
    # which it heals by itself.
    _ongoing: dict[tuple[int, int], tuple[Disturbance, float]] = field(default_factory=dict)

    @classmethod
    def start(cls, network: HostNetwork, spec: WorldSpec) -> Self | None:
        """Start the netfault daemon of a world with faults of the network; None if it has none.

        Raises:
            LaunchError: The kernel lacks what it needs.
        """
        if not disturbs_network(spec.faults):
            return None
        pid, connection = start_child(partial(run_netfault_daemon, network, spec.seed))
        connection.settimeout(_ANSWER_S)
        faults = cls(network, spec, pid, connection)
        if error := faults._await_daemon():
            faults.close()
            happened = "the network between the world's hosts cannot be disturbed"
            raise LaunchError(happened, seen=error)
        return faults

    def begin(self, index: int, rank: int, now_s: float) -> str:
        """Perform a fault; return what went wrong, empty if nothing did.

        Args:
            index: Its index among the world's faults.
            rank: The rank that has passed the fault's point.
            now_s: The time.
        """
        fault = self.spec.faults[index]
        disturbance = disturbance_of(fault, rank, self.spec)
        until_s = now_s + fault.params.get("heals_after", math.inf)
        self._ongoing[index, rank] = (disturbance, until_s)
        return self._apply(disturbance.resets)

    def begin_before_rendezvous(self, now_s: float) -> None:
        """Perform the faults that are in force before the ranks start their backends.

        Raises:
            LaunchError: One could not be performed.
        """
        for index, fault in enumerate(self.spec.faults):
            for rank in fault.ranks if fault.at.point == "rendezvous" else ():
                if error := self.begin(index, int(rank), now_s):
                    raise LaunchError(f"{fault!r} could not be performed", seen=error)

    def wait_s(self, now_s: float) -> float | None:
        """Return in how many seconds a fault heals by itself, None if none does."""
        until_s = min((until_s for _, until_s in self._ongoing.values()), default=math.inf)
        return None if math.isinf(until_s) else max(0.0, until_s - now_s)

    def heal_due(self, now_s: float) -> None:
        """Heal the faults whose time is up."""
        over = [key for key, (_, until_s) in self._ongoing.items() if until_s <= now_s]
        for key in over:
            del self._ongoing[key]
        if over:
            self._apply()

    def heal_all(self) -> str:
        """Heal all faults; return what went wrong, empty if nothing did."""
        is_disturbed = bool(self._ongoing)
        self._ongoing.clear()
        return self._apply() if is_disturbed else ""

    def close(self) -> None:
        """End the daemon: it exits when its connection is closed."""
        self.connection.close()
        deadline_s = time.monotonic() + _END_S
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline_s:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def _apply(self, resets: frozenset[int] = frozenset()) -> str:
        """Apply the combined ongoing faults to the network; return what went wrong."""
        wanted = merged(each for each, _ in self._ongoing.values())
        for host in self.network.hosts:
            is_known = host.index not in wanted.nameless
            set_names_known(self.network.folder, self.network.hosts, host, is_known=is_known)
        return self._await_daemon(SetDisturbance(replace(wanted, resets=resets)))

    def _await_daemon(self, request: SetDisturbance | None = None) -> str:
        """Send a request, if there is one, and await the answer; return what went wrong, if any."""
        try:
            if request is not None:
                send_packet(self.connection, request)
            answer = receive_packet(self.connection, FromDaemon)
        except OSError as error:
            return f"the netfault daemon does not answer: {error}"
        return answer.message.error if answer else "the netfault daemon has ended"
