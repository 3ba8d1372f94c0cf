"""The part of a simulated world in its server: it starts and ends the process of the exchange."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.launch.libc import die_with_parent
from pytest_multihost.core.launch.scratch import sockets_directory
from pytest_multihost.core.launch.server.parts import ServerPart
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
class _ExchangeProcess:
    """The running process of an exchange; 0: it has ended."""

    pid: int

    def processes(self) -> Sequence[int]:
        """Return the process, through which ranks wait for each other."""
        return (self.pid,) if self.pid else ()

    def end(self) -> None:
        """End the process, before the server ends all that ranks have left behind."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0


def start(spec: WorldSpec, scratch: Path) -> ServerPart:
    """Fork the process of the exchange.

    The server has one thread and no runtime, so this is as sound as forking a rank.

    Raises:
        OSError: It cannot be started.
        LaunchError: The world does not fit into memory.
    """
    test = name_of_test(spec.nodeid, spec.size)
    _lessons.prepare(test, spec.size)
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
    exchange = _ExchangeProcess(pid)
    return ServerPart(
        companions=exchange.processes,
        exchanges=exchange.processes,
        # A rank waits until a place is free: a thousand ranks must not all start at once.
        enter=lambda rank: own_link(address, rank).connect(),
        perform=lambda _rank, _index: "the simulated backend has no faults of its own",
        begin_end=exchange.end,
        close=lambda: _lessons.add(test, spec.size, scratch),  # from the world, which has ended
    )
