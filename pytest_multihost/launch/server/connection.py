"""The controller's connection to one server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.launch.reaper import kill_strays, wait_until_dead
from pytest_multihost.launch.wire.framing import GarbledError
from pytest_multihost.launch.wire.packets import Packet, receive_packet, send_packet
from pytest_multihost.model.errors import LaunchError, UnsoundForkError
from pytest_multihost.model.messages import (
    Failed,
    FromServer,
    Quit,
    ToServer,
    Unsound,
    WorldForked,
)

ANSWER_S = 60.0
"""How long the server may take to answer. Forking 64 ranks of a large image takes a second."""

FAREWELL_S = 15.0
"""How long the server may take to end its ranks and itself."""

PREPARE_S = 600.0
"""How long a new server may collect, and load what the project has it load."""

_LOG_TAIL = 4_000


def reap_child(server: int) -> None:
    """Wait for the end of the server and reap it, at the latest after having killed it."""
    wait_for_exit(server)
    os.waitpid(server, 0)


def wait_for_exit(server: int) -> None:
    """Wait for the end of a server, and kill it if that does not come.

    Raises:
        ProcessLookupError: It is gone already.
    """
    descriptor = os.pidfd_open(server)
    try:
        if not wait_until_dead([descriptor], FAREWELL_S):
            os.kill(server, signal.SIGKILL)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class ServerConnection:
    """A server that has been started.

    Attributes:
        control: Our end of the control connection.
        pid: The server, our child unless `reap` says otherwise.
        log: Where it prints, if that is not the terminal.
        reap: Waits for its end, at the latest after having killed it, and removes what is left.
    """

    control: socket.socket
    pid: int
    log: Path | None = None
    reap: Callable[[int], None] = reap_child
    is_closed: bool = False
    _ranks: frozenset[int] = frozenset()

    def await_serving(self) -> None:
        """Wait until a new server is ready: it may be collecting, or importing torch.

        Raises:
            UnsoundForkError: It must not fork ranks.
            LaunchError: It could not get ready.
        """
        self.control.settimeout(PREPARE_S)
        self.receive()
        self.control.settimeout(ANSWER_S)

    def close(self) -> None:
        """End the server, and with it every rank that is left.

        It is asked to go: closing our end would not tell it, if a child that a test has forked
        still holds a copy.
        """
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(OSError):
            send_packet(self.control, Quit())
        self.control.close()
        self.reap(self.pid)

    def send(self, message: ToServer, descriptors: Sequence[int] = ()) -> None:
        """Send a request to the server.

        Raises:
            LaunchError: The server is gone.
        """
        try:
            send_packet(self.control, message, descriptors)
        except OSError as error:
            raise self._lost(str(error)) from error

    def receive(self) -> FromServer:
        """Return the server's next message; see `receive_packet`."""
        return self.receive_packet().message

    def receive_packet(self) -> Packet[FromServer]:
        """Return the server's next message with its descriptors.

        Raises:
            UnsoundForkError: It must not fork ranks.
            LaunchError: The server is gone, does not answer, or could not do what it was asked.
        """
        try:
            packet: Packet[FromServer] | None = receive_packet(self.control, FromServer)
        except (OSError, GarbledError) as error:
            raise self._lost(str(error)) from error
        if packet is None:
            raise self._lost("it closed its connection")
        match packet.message:
            case WorldForked(pids=pids):
                self._ranks = frozenset(pids)
            case Unsound(problems):
                self.close()
                raise UnsoundForkError(
                    "the server cannot be forked into ranks: a rank would hang, not fail",
                    seen=problems,
                )
            case Failed(why):
                raise LaunchError("the ranks could not be started", seen=why)
        return packet

    def _lost(self, seen: str) -> LaunchError:
        """Reap the server; the next world gets a new one."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()
        kill_strays(self.pid, self._ranks)
        return LaunchError(
            "the server that starts the ranks is gone", seen=seen + self._last_words()
        )

    def _last_words(self) -> str:
        if self.log is None:
            return ""
        try:
            text = self.log.read_text("utf-8", "backslashreplace")[-_LOG_TAIL:]
        except OSError:
            return ""
        return f"\nIts last words, from {self.log}:\n{text}" if text.strip() else ""


def unexpected(message: FromServer) -> LaunchError:
    """Return the error for a message that does not fit what the server was asked."""
    return LaunchError(f"the server said {type(message).__name__} at the wrong time")
