"""The TCP connections of a command that carries a peer's bytes, without delays.

srun and slurmstepd leave Nagle's algorithm on: a small segment waits until the one before it has
been acknowledged. The other side delays that by 40 to 200 ms, because an answer may carry it. A
peer's events have no answers, so most of them would wait for so long.

The connections belong to a child of this process. Linux lets a parent open its child's descriptors
as well: see pidfd_getfd(2).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_multihost.core.launch.libc import descriptor_of


def tcp_sockets_of(pid: int) -> Sequence[socket.socket]:
    """Return the TCP connections of a process, and end the delays of its packets.

    They stay connected while they are open here, even if the process ends. None are returned where
    this process cannot have them: on another system, or with less rights.
    """
    if not hasattr(os, "pidfd_open"):
        return ()
    found: list[socket.socket] = []
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            found += _connected(_open_sockets(pid, process))
        finally:
            os.close(process)
    return found


def _open_sockets(pid: int, process: int) -> Iterator[socket.socket]:
    """Yield descriptors of this process for the sockets of another one."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it has closed the descriptor
            if os.readlink(each).startswith("socket:"):
                yield socket.socket(fileno=descriptor_of(process, int(each.name)))


def _connected(sockets: Iterable[socket.socket]) -> Iterator[socket.socket]:
    """Yield the TCP connections among sockets, and close the others."""
    for each in sockets:
        try:
            each.getpeername()
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # fails for other kinds
        except OSError:
            each.close()
        else:
            yield each


def acknowledge(sockets: Iterable[socket.socket]) -> None:
    """Acknowledge at once the data that has arrived at TCP connections."""
    for each in sockets:
        with contextlib.suppress(OSError):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
