"""The TCP connections of commands such as srun, which hold back small pieces of bytes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pytest_multihost.extensions.engines.driver.carrying_sockets import (
    acknowledge,
    tcp_sockets_of,
)

pytestmark = pytest.mark.unit

COMMAND = """
import os, select, socket, sys

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as far:
    while True:
        ready, _, _ = select.select([0, far], [], [])
        if far in ready:
            if not (data := far.recv(1024)):
                break
            os.write(1, data)
        if 0 in ready:
            far.sendall(os.read(0, 1024))
"""
"""A program that carries bytes as srun does: over TCP, as the kernel sets it by default."""

ROUNDS = 20


@dataclass(frozen=True)
class Carried:
    """A command, and the socket to which it is connected."""

    process: subprocess.Popen[bytes]
    far: socket.socket

    def exchange(self) -> None:
        """Send a byte to the far side, and receive one from there through the command."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        os.write(self.process.stdin.fileno(), b"?")
        assert self.far.recv(1) == b"?"
        self.far.sendall(b"!")
        assert os.read(self.process.stdout.fileno(), 1) == b"!"

    @property
    def unacknowledged(self) -> int:
        """How many bytes the far side has sent and not been told to have arrived."""
        found = fcntl.ioctl(self.far, termios.TIOCOUTQ, bytes(4))
        return int(struct.unpack("i", found)[0])


@pytest.fixture
def carried() -> Iterator[Carried]:
    """Run such a command."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(listener.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process, listener.accept()[0] as far:
            yield Carried(process, far)
            far.shutdown(socket.SHUT_RDWR)


def test_what_has_arrived_is_acknowledged_at_once(carried: Carried) -> None:
    """Not with the next answer, or 40 ms later: until then the next piece would wait."""
    carried.exchange()
    sockets = tcp_sockets_of(carried.process.pid)
    late, left = 0, 0
    for _ in range(ROUNDS):
        carried.exchange()
        late += carried.unacknowledged > 0
        acknowledge(sockets)
        left += carried.unacknowledged > 0
    for each in sockets:
        each.close()
    assert late > ROUNDS // 4, "this kernel does not delay acknowledgements"
    assert left < late / 4


def test_what_the_command_sends_waits_for_nothing(carried: Carried) -> None:
    """Only its TCP connection is concerned, and that of the process itself, not of a copy."""
    carried.exchange()
    (found,) = tcp_sockets_of(carried.process.pid)
    with found:
        assert found.getpeername() == carried.far.getsockname()
    (again,) = tcp_sockets_of(carried.process.pid)
    with again:
        assert again.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_process_that_has_ended_has_no_connections() -> None:
    """Its command may have failed at once."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert tcp_sockets_of(process.pid) == []


def test_another_system_has_no_way_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the run is slower, and nothing else."""
    monkeypatch.delattr(os, "pidfd_open")
    assert tcp_sockets_of(os.getpid()) == ()
