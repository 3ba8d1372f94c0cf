"""The part of a simulated world in its server: it starts and ends the process of the exchange."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.launch.libc import die_with_parent
from pytest_multihost.core.launch.scratch import sockets_directory
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.extensions.simulated.learned import Lessons, name_of_test
from pytest_multihost.extensions.simulated.link import own_link, short_path
from pytest_multihost.extensions.simulated.process import run
from pytest_multihost.extensions.simulated.semantics import semantics_of

_lessons = Lessons()
"""The lessons of this server's worlds."""


def exchange_address(scratch: str | Path) -> str:
    """Return the path of the socket of a world's exchange; no `Path`: it costs each rank pages."""
    return f"{sockets_directory(scratch)}/exchange"


@dataclass(slots=True)
class ExchangePart:
    """The running process of an exchange."""

    pid: int
    spec: WorldSpec
    scratch: Path
    address: str
    ports: Sequence[socket.socket] = ()
    descriptors: Sequence[int] = ()

    @property
    def companions(self) -> Sequence[int]:
        """The process of the exchange."""
        return (self.pid,) if self.pid else ()

    @property
    def exchanges(self) -> Sequence[int]:
        """The same process: ranks wait for each other through it."""
        return self.companions

    def take_tables(self) -> Mapping[str, int]:
        """Return nothing: it has no network."""
        return {}

    def wait_s(self, now_s: float) -> float | None:  # noqa: ARG002 - nothing is ever due
        """Return None: there is no deadline."""
        return None

    def act(self, now_s: float) -> None:
        """Do nothing."""

    def enter(self, rank: int) -> None:
        """Wait until a place is free: a thousand ranks must not all start at once."""
        own_link(self.address, rank).connect()

    def perform(self, rank: int, index: int) -> str:  # noqa: ARG002 - there is none
        """Return that it has no faults."""
        return "the simulated backend has no faults of its own"

    def undo(self) -> str:
        """Return that nothing has to be undone."""
        return ""

    def begin_end(self) -> None:
        """End the process, before the server ends all that ranks have left behind."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0

    def close(self) -> None:
        """Learn from the world, which has ended."""
        _lessons.add(name_of_test(self.spec.nodeid, self.spec.size), self.spec.size, self.scratch)


def start(spec: WorldSpec, scratch: Path) -> ExchangePart:
    """Fork the process of the exchange.

    The server has one thread and no runtime, so this is as sound as forking a rank.

    Raises:
        OSError: It cannot be started.
        LaunchError: The world does not fit into memory.
    """
    _lessons.prepare(name_of_test(spec.nodeid, spec.size), spec.size)
    address = exchange_address(scratch)
    parent = os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with short_path(address) as path:
            listener.bind(path)
        listener.listen(spec.size)
        if (pid := os.fork()) == 0:
            try:
                die_with_parent(parent)
                run(listener, scratch, spec.size, semantics_of(spec), parent=parent)
            finally:
                os._exit(1)
    return ExchangePart(pid, spec, scratch, address)
