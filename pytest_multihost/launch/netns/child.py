"""Run work in a child process of the server.

A process that enters a user namespace cannot return: setns(2) and unshare(2) with CLONE_NEWUSER
give it every capability inside and take all that it has outside, also those that it would need to
come back (user_namespaces(7)). The server must remain what it is. So a child of it enters the
namespaces of a world's hosts, and sends back descriptors and results.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_multihost.launch.libc import die_with_parent
from pytest_multihost.launch.wire.packets import Packet, receive_packet, send_packet

Work = Callable[[socket.socket], None]
"""What a child does; it sends packets about it."""


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """The child's work has raised an exception."""

    kind: ClassVar = "failed"
    error: str


def run_in_child(work: Work, messages: object, *, timeout_s: float) -> list[Packet[Any]]:
    """Return the packets that a child sends before it ends; it has ended then.

    Args:
        work: What it does.
        messages: What it may send, a union of classes, with `ChildFailed` among them.
        timeout_s: How long it may be silent.

    Raises:
        TimeoutError: It was silent for longer; it has been killed.
    """
    pid, connection = start_child(work)
    connection.settimeout(timeout_s)
    try:
        return list(iter(lambda: receive_packet(connection, messages), None))
    finally:
        connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def start_child(work: Work) -> tuple[int, socket.socket]:
    """Start a child; return its process id, and the connection to it.

    Fork without exec is sound here: the server has one thread (see `launch.server.serve`).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _run(work, theirs, parent)
    theirs.close()
    return pid, ours


def _run(work: Work, connection: socket.socket, parent: int) -> None:
    """Do the work and end this process, whatever happens."""
    try:
        die_with_parent(parent)
        work(connection)
    except BaseException as error:  # noqa: BLE001 - nothing may unwind into the server's stack
        with contextlib.suppress(OSError):
            send_packet(connection, ChildFailed(f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)
