"""Launch worlds whose hosts are containers, each with a server in it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pytest_multihost.launch.composite_world import CompositeWorld
from pytest_multihost.launch.docker.containers import (
    Dwelling,
    Engine,
    connect,
    lacking,
    remove_container,
    told,
)
from pytest_multihost.launch.docker.entry import CODE, CONTROL, SOCKET
from pytest_multihost.launch.fallback import FallbackLauncher
from pytest_multihost.launch.interface import Share
from pytest_multihost.launch.server.connection import ANSWER_S, ServerConnection, wait_for_exit
from pytest_multihost.launch.server.launcher import ServerLauncher
from pytest_multihost.launch.server.start_server import Program, write_job_spec
from pytest_multihost.launch.server.world import ServerWorld
from pytest_multihost.launch.wire.packets import send_packet
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.hosts import Host, all_hosts
from pytest_multihost.model.spec import WorldSpec

ARRIVE_S = 30.0
"""How long a container may take until the first of its Python runs."""

_LOOK_S = 0.5
_CREDENTIALS = struct.Struct("=iII")  # struct ucred of unix(7)


@dataclass(slots=True)
class ContainerLauncher:
    """Starts worlds in containers, which serve one world after the other.

    Attributes:
        dwelling: What the containers are made from.
        programs: For each way of launching, the cheapest first: what a container is to run. It gets
            the host's name, for its log.
    """

    dwelling: Dwelling
    programs: Mapping[str, Callable[[str], Program]]
    _engine: Engine | None = None
    _why: tuple[LaunchError | None] | None = None
    _ladders: dict[int, FallbackLauncher] = field(default_factory=dict)
    _begun: dict[str, ServerConnection] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The way of launching in use."""
        ladders = list(self._ladders.values())
        return f"docker-{ladders[0].name}" if ladders else "docker"

    @property
    def reasons(self) -> list[str]:
        """Why the cheapest way was left."""
        return list(dict.fromkeys(why for each in self._ladders.values() for why in each.reasons))

    def open(self) -> None:
        """Do nothing: where there is no engine, only the tests that need one are skipped."""

    def why_no_hosts(self, _: Path) -> LaunchError | None:
        """Return why no container can be started here; None if they can."""
        if self._why is None:
            self._why = (lacking(self.dwelling.image),)
        return self._why[0]

    def _opened(self) -> Engine:
        """Return the engine, connected, with a network.

        Raises:
            LaunchError: There is no engine, or it refuses.
        """
        if self._engine is None:
            engine = connect()
            engine.open()
            self._engine = engine
        return self._engine

    def provide(self, hosts: Sequence[Host]) -> None:
        """Have a container with a server that serves for each host.

        All collect at the same time.

        Raises:
            UnsoundForkError: None of the ways is sound.
            LaunchError: A container could not be started.
        """
        new = [host for host in hosts if host.index not in self._ladders]
        first = next(iter(self.programs))
        for host in new:
            self._begun[host.name] = self._start(host.name, self.programs[first])
        for host in new:
            ladder = self._ladder(host.name)
            ladder.open()
            self._ladders[host.index] = ladder

    def _ladder(self, host: str) -> FallbackLauncher:
        starts = {way: partial(self._start, host, make) for way, make in self.programs.items()}
        return FallbackLauncher([ServerLauncher(way, start) for way, start in starts.items()])

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> CompositeWorld:
        """Start the ranks of a world, with new containers for those that are gone.

        Raises:
            LaunchError: They could not be started; none is left.
        """
        hosts = all_hosts(spec.hosts, spec.size)
        self.provide(hosts)
        shares: list[ServerWorld] = []
        try:
            for host in hosts:
                ports = shares[0].forked.ports if shares else None
                share = Share(ranks=tuple(host.ranks), ports=ports)
                ladder = self._ladders[host.index]
                shares.append(ladder.start(spec, directory=directory, scratch=scratch, share=share))
        except LaunchError:
            CompositeWorld(shares, survives_loss=True).end(grace_s=0.0)
            raise
        return CompositeWorld(shares, survives_loss=True)

    def close(self) -> None:
        """End the servers, and remove the containers and the network."""
        for ladder in self._ladders.values():
            ladder.close()
        for server in self._begun.values():
            server.close()
        if self._engine is not None:
            with contextlib.suppress(LaunchError), told("the network could not be removed"):
                self._engine.close()
            self._engine = None

    def _start(self, host: str, make: Callable[[str], Program]) -> ServerConnection:
        """Return a server in a new container, or the one that was begun for this host."""
        if host in self._begun:
            return self._begun.pop(host)
        engine = self._opened()
        with _listening() as listener:
            program = make(host)
            container = self._run(engine, host, program, listener.getsockname())
            try:
                control = _accept(listener, container)
            except LaunchError as error:
                remove_container(container)
                raise _with_log(error, program.log) from error
        pid = _peer(control)
        server = ServerConnection(control, pid, program.log, partial(_bury, container))
        order = {**program.order, "control": CONTROL, "controller": os.getpid()}
        letter = write_job_spec(order)
        try:
            send_packet(control, {"code": program.code}, [letter])
        finally:
            os.close(letter)
        return server

    def _run(self, engine: Engine, host: str, program: Program, address: str) -> Any:  # noqa: ANN401 - docker has no types
        dwelling = Dwelling(
            image=self.dwelling.image,
            python=self.dwelling.python,
            shared=(*self.dwelling.shared, Path(address).parent, program.log.parent),
            lent=self.dwelling.lent,
            cwd=self.dwelling.cwd,
        )
        # The log is this machine's file: what is said even before our first line gets there.
        script = 'exec "$0" -c "$1" >>"$2" 2>&1 </dev/null'
        return engine.run(
            dwelling,
            host=host,
            command=["/bin/sh", "-c", script, self.dwelling.python, CODE, str(program.log)],
            environment={**program.environment, SOCKET: address},
        )


@contextlib.contextmanager
def _listening() -> Iterator[socket.socket]:
    """Yield a socket on which a container can reach us; a file, for it has another network.

    The file lies in a folder of its own, of which nothing is left when it has been reached.
    """
    with (
        tempfile.TemporaryDirectory(prefix="multihost-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(f"{folder}/socket")
        listener.listen(1)
        listener.settimeout(_LOOK_S)
        yield listener


def _accept(listener: socket.socket, container: Any) -> socket.socket:  # noqa: ANN401 - docker has no types
    """Wait for the container's connection.

    Raises:
        LaunchError: It ended before, or does not come.
    """
    for _ in range(int(ARRIVE_S / _LOOK_S)):
        with contextlib.suppress(TimeoutError):
            control, _ = listener.accept()
            control.settimeout(ANSWER_S)
            return control
        if not _is_running(container):
            raise LaunchError("the container ended before it could serve")
    raise LaunchError(
        f"the container does not reach this process by {listener.getsockname()}",
        remedy="The engine must be on this machine, and see its files: worlds share files with it.",
    )


def _is_running(container: Any) -> bool:  # noqa: ANN401 - docker has no types
    from docker.errors import NotFound

    try:
        container.reload()
    except NotFound:
        return False
    return container.status in ("created", "running")


def _with_log(error: LaunchError, log: Path) -> LaunchError:
    with contextlib.suppress(OSError):
        words = log.read_text("utf-8", "backslashreplace")[-2000:].strip()
        return LaunchError(
            error.happened, seen=f"Its last words:\n{words}" if words else "", remedy=error.remedy
        )
    return error


def _peer(control: socket.socket) -> int:
    """Return the process at the other end; the kernel tells its id as it is on this machine."""
    data = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(data)[0]
    return pid


def _bury(container: Any, server: int) -> None:  # noqa: ANN401 - docker has no types
    """Wait for the end of a server, and remove its container with whatever is left in it."""
    with contextlib.suppress(ProcessLookupError):
        wait_for_exit(server)
    remove_container(container)
