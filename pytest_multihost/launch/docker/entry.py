"""Inside a container: fetch from the controller what it is for, and become that."""

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

from pytest_multihost.launch.wire.packets import receive_packet

ORDER = "PYTEST_MULTIHOST_ORDER"
"""As in `launch.starting`, which imports the server, which imports this."""

SOCKET = "PYTEST_MULTIHOST_SOCKET"
"""Environment variable that names the socket on which the controller waits."""

CONTROL = 100
"""The descriptor under which a server finds its control connection."""

CODE = "from pytest_multihost.launch.docker.entry import main; main()"


_SOCK_DIAG = 4


def own_space() -> str:
    """Return the kernel's name of the network namespace in which this container is."""
    return os.readlink("/proc/self/ns/net")


def own_table() -> socket.socket:
    """Return a socket from which anybody can read this container's tables of sockets."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    return socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG)


def main() -> NoReturn:
    """Connect, take the order, and run the program that the controller names."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(os.environ.pop(SOCKET))
    packet = receive_packet(control)
    if packet is None:
        sys.exit("the controller went before it had said what is to be done")
    (letter,) = packet.descriptors
    os.set_inheritable(letter, True)  # noqa: FBT003 - the standard library's signature
    os.dup2(control.fileno(), CONTROL)
    code: str = packet.message["code"]
    os.execve(sys.executable, [sys.executable, "-c", code], {**os.environ, ORDER: str(letter)})
