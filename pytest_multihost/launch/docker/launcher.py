"""Launch worlds whose hosts are containers, each with a server in it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pytest_multihost.launch.composite_world import CompositeWorld
from pytest_multihost.launch.container_entry import CODE, CONTROL, SOCKET, RunProgram
from pytest_multihost.launch.docker.containers import (
    Container,
    ContainerSpec,
    Engine,
    docker_problem,
    engine_errors,
    remove_container,
)
from pytest_multihost.launch.interface import ANSWER_S
from pytest_multihost.launch.job_spec import write_job
from pytest_multihost.launch.reaper import wait_for_exit
from pytest_multihost.launch.refusals import refusals
from pytest_multihost.launch.server import (
    ServerConnection,
    ServerLauncher,
    ServerProgram,
    ServerWorld,
)
from pytest_multihost.launch.wire import send_packet
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.spec import WorldSpec

ARRIVE_S = 30.0
"""How long a container may take until the first of its Python runs."""

_POLL_S = 0.5
_CREDENTIALS = struct.Struct("=iII")  # struct ucred of unix(7)


@dataclass(slots=True)
class ContainerLauncher:
    """Starts worlds in containers, which serve one world after the other.

    Attributes:
        spec: How the containers are created.
        programs: For each way of launching, the cheapest first: returns the program for a
            container, given the host's name, which is in the name of its log.
    """

    spec: ContainerSpec
    programs: Mapping[str, Callable[[str], ServerProgram]]
    _engine: Engine | None = None
    _launchers: dict[int, ServerLauncher] = field(default_factory=dict)
    _started: dict[str, ServerConnection] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The way of launching in use."""
        launchers = list(self._launchers.values())
        return f"docker-{launchers[0].name}" if launchers else "docker"

    @property
    def reasons(self) -> list[str]:
        """Why the cheaper ways of launching are not used."""
        return list(dict.fromkeys(why for each in self._launchers.values() for why in each.reasons))

    def why_no_hosts(self, _: Path) -> LaunchError | None:
        """Return why no container can be started here; None if they can."""
        return docker_problem(self.spec.image)

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> CompositeWorld:
        """Start the ranks of a world; a host whose container is gone gets a new one.

        Raises:
            UnsoundForkError: No way of launching is sound.
            LaunchError: The ranks could not be started; none is left running.
        """
        hosts = spec.all_hosts
        new = [host for host in hosts if host.index not in self._launchers]
        for host in new:  # their servers collect in parallel
            make = next(iter(self.programs.values()))
            with refusals(f"the container for {host.name} could not be started"):
                self._started[host.name] = self._start(host.name, make)
        for host in new:
            launcher = ServerLauncher(
                {way: partial(self._start, host.name, make) for way, make in self.programs.items()}
            )
            launcher.open()
            self._launchers[host.index] = launcher
        shares: list[ServerWorld] = []
        try:
            for host in hosts:
                ports = shares[0].forked.ports if shares else None
                shares.append(
                    self._launchers[host.index].start(
                        spec, directory=directory, scratch=scratch, ranks=host.ranks, ports=ports
                    )
                )
        except LaunchError:
            CompositeWorld(shares, survives_loss=True).end(grace_s=0.0)
            raise
        return CompositeWorld(shares, survives_loss=True)

    def close(self) -> None:
        """End the servers, and remove the containers and the network."""
        for launcher in self._launchers.values():
            launcher.close()
        for server in self._started.values():
            server.close()
        if self._engine is not None:
            with (
                contextlib.suppress(LaunchError),
                engine_errors("the network could not be removed"),
            ):
                self._engine.close()
            self._engine = None

    def _start(self, host: str, make: Callable[[str], ServerProgram]) -> ServerConnection:
        """Return a server in a new container, or the one already started for this host."""
        if host in self._started:
            return self._started.pop(host)
        if self._engine is None:
            self._engine = Engine.start()
        engine = self._engine
        with _listening() as listener:
            program = make(host)
            container = self._run(engine, host, program, listener.getsockname())
            try:
                control = _accept(listener, container)
            except LaunchError as error:
                remove_container(container)
                seen = ServerConnection.last_words(program.log)
                raise LaunchError(error.happened, seen=seen, remedy=error.remedy) from error
        # The peer's process id, as it is on this machine (unix(7)).
        data = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid = _CREDENTIALS.unpack(data)[0]
        server = ServerConnection(control, pid, program.log, partial(_remove_after, container))
        job = write_job(replace(program.job, control=CONTROL, controller=os.getpid()))
        try:
            send_packet(control, RunProgram(program.code), [job])
        finally:
            os.close(job)
        return server

    def _run(self, engine: Engine, host: str, program: ServerProgram, address: str) -> Container:
        shared = (*self.spec.shared, Path(address).parent, program.log.parent)
        # The log is a file of this machine: it has the output from the first line of the shell on.
        script = 'exec "$0" -c "$1" >>"$2" 2>&1 </dev/null'
        return engine.run(
            replace(self.spec, shared=shared),
            host=host,
            command=["/bin/sh", "-c", script, self.spec.python, CODE, str(program.log)],
            environment={**program.environment, SOCKET: address},
        )


@contextlib.contextmanager
def _listening() -> Iterator[socket.socket]:
    """Yield a unix socket to which the container connects: it has a network of its own.

    The socket is in a separate folder that is mounted into the container, and removed afterwards.
    """
    with (
        tempfile.TemporaryDirectory(prefix="multihost-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(f"{folder}/socket")
        listener.listen(1)
        listener.settimeout(_POLL_S)
        yield listener


def _accept(listener: socket.socket, container: Container) -> socket.socket:
    """Wait for the container's connection.

    Raises:
        LaunchError: The container has ended, or does not connect in time.
    """
    for _ in range(int(ARRIVE_S / _POLL_S)):
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


def _is_running(container: Container) -> bool:
    from docker.errors import NotFound

    try:
        container.reload()
    except NotFound:
        return False
    return container.status in ("created", "running")


def _remove_after(container: Container, server: int) -> None:
    """Wait for the end of a server, and remove its container with all processes in it."""
    with contextlib.suppress(ProcessLookupError):
        wait_for_exit(server)
    remove_container(container)
