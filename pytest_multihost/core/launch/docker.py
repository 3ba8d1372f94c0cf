"""Worlds whose hosts are containers, each with a server in it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

import psutil

from pytest_multihost.core.launch.container_entry import CODE, CONTROL, SOCKET, RunProgram
from pytest_multihost.core.launch.interface import ANSWER_S, CompositeWorld, refusals
from pytest_multihost.core.launch.job_spec import write_job
from pytest_multihost.core.launch.reaper import wait_for_exit
from pytest_multihost.core.launch.server import (
    ServerConnection,
    ServerLauncher,
    ServerProgram,
    ServerWorld,
)
from pytest_multihost.core.launch.wire import send_packet
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.spec import WorldSpec

# Containers as hosts, through the Docker API: their network, and the resources they share.
#
# Each container has a host name, an address, a loopback, a root file system and shared memory of
# its own. It shares the process ids of the machine (``--pid=host``): a rank's id, a thread's id and
# the kernel's table of locks then mean the same in the container and to the watchdog outside, so
# that slot pages, deaths and proofs need no translation. Directories are shared at the same path.
#
# A container ends with its server, a server with the controller, and the engine removes containers
# that have ended. A controller that was killed leaves an empty network; the next run removes it.


LABEL = "pytest-multihost-hangs.controller"
"""Label of every container and network; its value identifies the controller."""

ENGINE_S = 60
"""How long the engine may take to answer."""

_REMOVED_S = 10.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# The package docker has no types.
Client: TypeAlias = Any
Container: TypeAlias = Any
Network: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """How the containers of a run are created.

    Attributes:
        image: The image, which must exist: nothing is pulled.
        python: The interpreter, a path or a name on the image's PATH.
        shared: Absolute paths of this machine that are mounted at the same path, writable.
        read_only: Paths that are mounted read-only.
        cwd: Absolute path of the directory to start in, beneath one of those.
    """

    image: str
    python: str
    shared: tuple[Path, ...]
    read_only: tuple[Path, ...] = ()
    cwd: Path


@dataclass(slots=True)
class Engine:
    """A connection to a Docker engine of this machine, and the network of one run.

    Attributes:
        client: The client of the package docker.
        network: The network that connects the containers.
        info: The engine's description of itself.
    """

    client: Client
    network: Network
    info: Mapping[str, Any]

    @classmethod
    def start(cls) -> Self:
        """Connect, and create a network, after removing those left by killed controllers.

        Raises:
            LaunchError: There is no engine, or it refuses.
        """
        client = connect()
        with engine_errors("the network between the containers could not be made"):
            info = client.info()
            remove_stale(client)
            name = f"multihost-{os.getpid()}-{time.monotonic_ns():x}"
            labels = {LABEL: _owner()}
            return cls(client, client.networks.create(name, driver="bridge", labels=labels), info)

    def run(
        self,
        spec: ContainerSpec,
        *,
        host: str,
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> Container:
        """Start a container and return it.

        Args:
            spec: How it is created.
            host: Its host name; the other containers find it by this.
            command: The command line.
            environment: Variables in addition to those of the image.

        Raises:
            LaunchError: The engine refuses.
        """
        # AppArmor's profile forbids reading the ranks, even to processes outside.
        has_apparmor = "name=apparmor" in (self.info.get("SecurityOptions") or ())
        with engine_errors(f"the container for {host} could not be started from {spec.image}"):
            return self.client.containers.run(
                spec.image,
                list(command),
                detach=True,
                auto_remove=True,
                name=f"{self.network.name}-{host}",
                hostname=host,
                labels={LABEL: _owner()},
                entrypoint=[],
                environment=dict(environment),
                user=f"{os.getuid()}:{os.getgid()}",
                working_dir=str(spec.cwd),
                mounts=_mounts(spec),
                shm_size="1g",
                pid_mode="host",
                userns_mode="host",  # pid_mode excludes a user namespace (userns-remap)
                security_opt=["apparmor=unconfined"] if has_apparmor else [],
                networking_config={
                    self.network.name: self.client.api.create_endpoint_config(aliases=[host])
                },
                network=self.network.name,
                # Without a name server outside, resolving an unknown name would take 10 s.
                dns_opt=["timeout:1", "attempts:1"],
            )

    def close(self) -> None:
        """Remove the network; its containers are gone."""
        remove_network(self.network)
        self.client.close()


def connect() -> Client:
    """Return a connection to the engine that DOCKER_HOST names, or to the machine's own.

    Raises:
        LaunchError: There is none, or the package docker is missing.
    """
    try:
        import docker
    except ImportError as error:
        seen = "the Python package docker is missing: pip install 'pytest-multihost-hangs[docker]'"
        raise LaunchError("containers cannot be started", seen=seen) from error
    remedy = (
        "Start an engine of this machine (systemctl start docker), let DOCKER_HOST name it, and be"
        " a member of the group docker."
    )
    with engine_errors("the Docker engine cannot be reached", remedy=remedy):
        return docker.from_env(timeout=ENGINE_S)


def docker_problem(image: str) -> LaunchError | None:
    """Return why this machine cannot run worlds in containers of an image; None if it can."""
    try:
        client = connect()
    except LaunchError as error:
        return error
    from docker.errors import ImageNotFound

    try:
        with engine_errors("the engine does not list its images"):
            client.images.get(image)
    except LaunchError as error:
        if not isinstance(error.__cause__, ImageNotFound):
            return error
        happened = f"the Docker engine has no image {image!r}"
        remedy = "Build it as docker/README.md says, or name another: --multihost-docker-image."
        return LaunchError(happened, remedy=remedy)
    finally:
        client.close()
    return None


@contextlib.contextmanager
def engine_errors(happened: str, *, remedy: str = "") -> Iterator[None]:
    """Turn errors of the engine into errors of launching.

    Raises:
        LaunchError: The engine has refused, or cannot be reached.
    """
    from docker.errors import DockerException

    try:
        yield
    except (DockerException, OSError) as error:  # requests' errors are OSErrors
        seen = str(getattr(error, "explanation", None) or error)
        raise LaunchError(happened, seen=seen, remedy=remedy) from error


def remove_container(container: Container) -> None:
    """End a container with all its processes, and remove it; it may be gone already."""
    from docker.errors import APIError

    # Status 404: it is gone; 409: the engine is about to remove it.
    with contextlib.suppress(APIError, OSError):
        container.remove(force=True, v=True)


def remove_network(network: Network) -> None:
    """Remove a network, once the engine has removed its containers."""
    from docker.errors import APIError, NotFound

    deadline_s = time.monotonic() + _REMOVED_S
    while time.monotonic() < deadline_s:
        try:
            network.remove()
        except NotFound:
            return
        except (APIError, OSError):  # it has active endpoints
            time.sleep(0.05)
        else:
            return


def remove_stale(client: Client) -> None:
    """Remove containers and networks of this machine's controllers that have ended."""
    wanted = {"label": LABEL}
    for container in client.containers.list(all=True, filters=wanted, ignore_removed=True):
        if is_orphaned(container.labels[LABEL]):
            remove_container(container)
    for network in client.networks.list(filters=wanted):
        if is_orphaned(network.attrs["Labels"][LABEL]):
            remove_network(network)


def _owner() -> str:
    """Return a text that identifies this process by id, start time and boot: ids are reused."""
    started_s = psutil.Process().create_time()
    return f"{_boot()}/{os.getpid()}/{started_s:.2f}"


def is_orphaned(owner: str) -> bool:
    """Return whether a label's value names a process of this machine that has ended."""
    boot, _, process = owner.partition("/")
    pid, _, started_s = process.partition("/")
    if boot != _boot() or not pid.isdecimal():
        return False
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" != started_s
    except psutil.NoSuchProcess:
        return True


def _boot() -> str:
    return _BOOT.read_text().strip()


def _mounts(spec: ContainerSpec) -> list[Any]:
    from docker.types import Mount

    shared = outermost(spec.shared)
    read_only = [path for path in outermost(spec.read_only) if outermost((*shared, path)) != shared]
    return [
        Mount(str(path), str(path), type="bind", read_only=path in read_only)
        for path in (*shared, *read_only)
    ]


def outermost(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return those of `paths` that are beneath no other, without duplicates."""
    found = dict.fromkeys(paths)
    return tuple(path for path in found if not any(parent in found for parent in path.parents))


# Launch worlds whose hosts are containers, each with a server in it.


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
