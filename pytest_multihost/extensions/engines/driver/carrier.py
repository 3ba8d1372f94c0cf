"""Carries bytes between the driver and its nodes, in a process of its own that sends heartbeats.

The driver cannot send them itself: it has one thread, which may be in a test without ranks for an
hour, and it may be stopped.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.extensions.engines.driver.byte_pump import STUCK_S
from pytest_multihost.extensions.engines.driver.heartbeats import HEARTBEAT, encode_chunk
from pytest_multihost.extensions.engines.driver.one_way import OneWay, await_ready

_CODE = "from pytest_multihost.extensions.engines.driver.carrier import main; main()"

_END_S = 2.0
"""How long the process may take to end after the driver has closed its connections."""


@dataclass(slots=True)
class Carrier:
    """The process.

    Attributes:
        connections: The driver's connections, in the order of the nodes.
    """

    process: subprocess.Popen[bytes]
    connections: Sequence[socket.socket]

    @classmethod
    def start(cls, nodes: Sequence[socket.socket], beat_s: float) -> Carrier:
        """Start the process, and close the connections that it takes over.

        Raises:
            LaunchError: It cannot be started.
        """
        pairs = [socket.socketpair() for _ in nodes]
        theirs = [each for _, each in pairs]
        taken = [each.fileno() for pair in zip(theirs, nodes, strict=True) for each in pair]
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(beat_s), *map(str, taken)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=taken,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError("pytest cannot start a process", seen=str(error)) from error
        finally:
            for each in (*theirs, *nodes):
                each.close()
        return cls(process, [each for each, _ in pairs])

    def stop(self) -> None:
        """Close the driver's connections, and end the process; does nothing twice."""
        for each in self.connections:
            each.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class _Line:
    """The connections to the driver and to one node.

    Attributes:
        sockets: Both, and a second descriptor of each: see `await_ready`.
        ended_s: When the driver has closed its connection; None while it has not.
    """

    sockets: Sequence[socket.socket]
    to_node: OneWay
    to_driver: OneWay
    ended_s: float | None = None

    @classmethod
    def between(cls, driver: socket.socket, node: socket.socket) -> _Line:
        """Return the line from one connection to the other."""
        for each in (driver, node):
            each.setblocking(False)  # noqa: FBT003 - the standard library's signature
        sockets = driver, node, driver.dup(), node.dup()
        reads_driver, reads_node, to_driver, to_node = (each.fileno() for each in sockets)
        ways = OneWay(reads_driver, to_node, encode_chunk), OneWay(reads_node, to_driver)
        return cls(sockets, *ways)

    @property
    def ways(self) -> Sequence[OneWay]:
        """Both directions."""
        return self.to_node, self.to_driver

    @property
    def until_s(self) -> float:
        """When the last bytes of the driver are given up, because the node does not read them."""
        return math.inf if self.ended_s is None else self.ended_s + STUCK_S

    @property
    def is_over(self) -> bool:
        """Whether one side has ended, and the other has got all data."""
        is_stuck = time.monotonic() >= self.until_s
        return is_stuck or self.to_node.is_over or self.to_driver.is_over

    def move(self, ready: set[int]) -> None:
        """Read and write as much as is possible without blocking."""
        for way in self.ways:
            way.move(ready)
        if self.to_node.source < 0 and self.ended_s is None:
            self.ended_s = time.monotonic()

    def beat(self) -> None:
        """Send a heartbeat, unless other bytes are on their way."""
        self.to_node.held += b"" if self.to_node.held else HEARTBEAT

    def close(self) -> None:
        """Close both connections."""
        for each in self.sockets:
            each.close()


def carry(pairs: Sequence[tuple[socket.socket, socket.socket]], beat_s: float) -> None:
    """Carry bytes until each pair has ended on one side.

    Args:
        pairs: Connections to the driver and to a node.
    """
    lines = [_Line.between(*each) for each in pairs]
    next_s = time.monotonic() + beat_s
    while lines:
        until_s = min(next_s, *(each.until_s for each in lines))
        ways = [way for each in lines for way in each.ways]
        ready = await_ready(ways, until_s - time.monotonic())
        for each in lines:
            each.move(ready)
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + beat_s
            for each in lines:
                each.beat()
        for each in [each for each in lines if each.is_over]:
            each.close()
            lines.remove(each)


def main() -> NoReturn:
    """Carry bytes between the sockets of the command line; never returns."""
    beat_s, *numbers = sys.argv[1:]
    sockets = [socket.socket(fileno=int(each)) for each in numbers]
    carry(list(zip(sockets[::2], sockets[1::2], strict=True)), float(beat_s))
    os._exit(0)
