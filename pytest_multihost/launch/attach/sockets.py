"""What connections between machines need: to notice a silent one, and not to leak into children."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from pathlib import Path

import psutil

SILENCE_S = 20
"""How long a machine may not answer at all before its connection counts as lost."""


def kernel_identity() -> tuple[str, str, str]:
    """Return which kernel this is, and in which of its clocks and tables of processes we are.

    Processes with the same kernel and clock (time_namespaces(7)) have the same monotonic time;
    those that share the table of processes too see each other in /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    time, pid = (os.readlink(f"/proc/self/ns/{name}") for name in ("time", "pid"))
    return boot, time, pid


def interface_of_address(address: str) -> str:
    """Return the network interface that has an address, "lo" where none is seen to."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return name
    return "lo"


def enable_keepalive(connection: socket.socket) -> None:
    """Have the kernel end a connection to a machine that is not there any more (tcp(7)).

    TCP_KEEPIDLE and the like cover a connection on which nothing is under way, TCP_USER_TIMEOUT one
    whose data is not acknowledged: with the defaults that takes hours and a quarter of an hour.
    """
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    )
    for level, name, value in options:
        with contextlib.suppress(OSError):  # a pair of unix sockets, in a test
            connection.setsockopt(level, name, value)


def close_in_children(connection: socket.socket) -> None:
    """Have a forked child close its copy: while one is open, the other side sees no end."""
    found = weakref.ref(connection)

    def close() -> None:
        mine = found()
        if mine is not None:
            mine.close()

    os.register_at_fork(after_in_child=close)
