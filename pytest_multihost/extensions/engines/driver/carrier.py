"""The processes that carry bytes: one between the driver and its nodes, and one beside each peer.

The driver cannot send heartbeats itself: it has one thread, which may be in a test without ranks
for an hour, and it may be stopped. A peer cannot notice by itself that these are missing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.extensions.engines.driver.heartbeats import ChunkDecoder, encode_chunk
from pytest_multihost.extensions.engines.driver.line import Duplex, carry

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


def main() -> NoReturn:
    """Carry bytes between the sockets of the command line; never returns."""
    beat_s, *numbers = sys.argv[1:]
    taken = [int(each) for each in numbers]
    carry(
        [
            Duplex.between(socket.socket(fileno=driver), node, os.dup(node), encode=encode_chunk)
            for driver, node in zip(taken[::2], taken[1::2], strict=True)
        ],
        float(beat_s),
    )
    os._exit(0)


def socket_of_streams(silent_s: float) -> socket.socket:
    """Return one socket in place of this process's standard input and output, which may be pipes.

    The code that waits for connections needs one descriptor, and a peer must have only one thread,
    so a child process carries the bytes until this process has ended. From now on standard input is
    empty, and standard output goes to standard error.

    Args:
        silent_s: After so many seconds without a heartbeat, standard input counts as ended.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - for its descriptor
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        os.close(incoming)
        os.close(outgoing)
        return ours
    ours.close()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # this process's parent decides
        signal.signal(number, signal.SIG_IGN)
    decode = ChunkDecoder().feed
    try:
        carry([Duplex.between(theirs, incoming, outgoing, decode=decode, silent_s=silent_s)])
    finally:
        os._exit(0)
