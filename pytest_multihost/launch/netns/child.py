"""Work that only a child of the server can do: who enters a user namespace does not come back."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from os import _exit as leave
from typing import Any

from pytest_multihost.launch.server.reaper import die_with_parent
from pytest_multihost.launch.wire.packets import Packet, receive_packet, send_packet

Work = Callable[[socket.socket], None]
"""What a child does; it tells of it with packets."""


def in_child(work: Work, *, timeout_s: float) -> list[Packet[Any]]:
    """Return the packets that a child sends before it ends; it has ended then.

    An exception in the child arrives as a packet of kind "failed" with its text as `error`.

    Raises:
        TimeoutError: It sent nothing for so long; it has been killed.
    """
    pid, ours = start_child(work)
    ours.settimeout(timeout_s)
    try:
        return list(iter(lambda: receive_packet(ours), None))
    finally:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def start_child(work: Work) -> tuple[int, socket.socket]:
    """Start a child; return its id, and the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _work(work, theirs, parent)
    theirs.close()
    return pid, ours


def _work(work: Work, stream: socket.socket, parent: int) -> None:
    """Do the work and end this process, whatever happens."""
    try:
        die_with_parent(parent)
        work(stream)
    except BaseException as error:  # noqa: BLE001 - nothing may climb into the server's stack
        with contextlib.suppress(OSError):
            send_packet(stream, {"kind": "failed", "error": f"{type(error).__name__}: {error}"})
    finally:
        leave(0)
