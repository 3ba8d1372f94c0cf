"""Containers that stand for hosts: the network between them, and what each sees of this machine.

All through the Docker API. Each container has a host name, an address, a loopback, a root file
system and shared memory of its own. It shares the process ids of the machine (``--pid=host``): a
rank's id, a thread's id and the kernel's table of locks then mean the same to the rank and to
whoever watches it, so that slot pages, deaths and proofs need no translation. What is shared with
pytest beside that is mounted at the same path.

No container survives its server, and no server the controller: then the engine removes it. What a
killed controller leaves is an empty network; the next run removes it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pytest_multihost.model.errors import LaunchError

LABEL = "pytest-multihost-hangs.controller"
"""What all that we make carries; its value says for whom it was made."""

ENGINE_S = 60
"""How long the engine may take for an answer."""

_REMOVED_S = 10.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_REMEDY = (
    "Start an engine of this machine (systemctl start docker), let DOCKER_HOST name it, and be a"
    " member of the group docker."
)
_INSTALL = "the Python package docker is missing: pip install 'pytest-multihost-hangs[docker]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dwelling:
    """What all containers of a run are made from.

    Attributes:
        image: The image, which must be there: nothing is pulled.
        python: The interpreter, a path or a name on the image's PATH.
        shared: Absolute paths of this machine that are seen at the same place, and can be changed.
        lent: Such that can only be read.
        cwd: Absolute path of the directory to start in, one of those above or beneath one.
    """

    image: str
    python: str
    shared: tuple[Path, ...]
    lent: tuple[Path, ...] = ()
    cwd: Path


@dataclass(slots=True)
class Engine:
    """A connection to a Docker engine of this machine, and the network of one run.

    Attributes:
        client: Of the package docker.
        network: The network that joins the containers.
        traits: What the engine says of itself.
    """

    client: Any
    network: Any = None
    traits: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> None:
        """Make the network, after removing those that killed controllers have left.

        Raises:
            LaunchError: The engine refuses.
        """
        with told("the network between the containers could not be made"):
            self.traits = self.client.info()
            remove_stale(self.client)
            name = f"multihost-{os.getpid()}-{time.monotonic_ns():x}"
            labels = {LABEL: _owner()}
            self.network = self.client.networks.create(name, driver="bridge", labels=labels)

    def run(
        self,
        dwelling: Dwelling,
        *,
        host: str,
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> Any:  # noqa: ANN401 - docker has no types
        """Start a container and return it.

        Args:
            dwelling: What it is made from.
            host: Its host name; the other containers find it by this.
            command: What it runs.
            environment: Variables beside those of the image.

        Raises:
            LaunchError: The engine refuses.
        """
        with told(f"the container for {host} could not be started from {dwelling.image}"):
            return self.client.containers.run(
                dwelling.image,
                list(command),
                detach=True,
                auto_remove=True,
                name=f"{self.network.name}-{host}",
                hostname=host,
                labels={LABEL: _owner()},
                entrypoint=[],
                environment=dict(environment),
                user=f"{os.getuid()}:{os.getgid()}",
                working_dir=str(dwelling.cwd),
                mounts=_mounts(dwelling),
                shm_size="1g",
                pid_mode="host",
                userns_mode="host",  # the engine's own map of users does not go with the above
                security_opt=self._security(),
                networking_config=self._place(host),
                network=self.network.name,
                # Where nothing answers for names of the outside, a look-up takes 10 s otherwise.
                dns_opt=["timeout:1", "attempts:1"],
            )

    def _place(self, host: str) -> Mapping[str, Any]:
        return {self.network.name: self.client.api.create_endpoint_config(aliases=[host])}

    def _security(self) -> list[str]:
        """Let the ranks be read: AppArmor's profile forbids it even to those outside."""
        has_apparmor = "name=apparmor" in (self.traits.get("SecurityOptions") or ())
        return ["apparmor=unconfined"] if has_apparmor else []

    def close(self) -> None:
        """Remove the network; its containers are gone."""
        if self.network is not None:
            remove_network(self.network)
            self.network = None
        self.client.close()


def connect() -> Engine:
    """Return a connection to the engine that DOCKER_HOST names, or to the machine's own.

    Raises:
        LaunchError: There is none, or the package docker is missing.
    """
    try:
        import docker
    except ImportError as error:
        raise LaunchError("containers cannot be started", seen=_INSTALL) from error
    with told("the Docker engine cannot be reached", remedy=_REMEDY):
        return Engine(docker.from_env(timeout=ENGINE_S))


def lacking(image: str) -> LaunchError | None:
    """Return why this machine cannot run worlds in containers of an image; None if it can."""
    try:
        engine = connect()
    except LaunchError as error:
        return error
    from docker.errors import ImageNotFound

    try:
        with told("the engine does not tell its images"):
            engine.client.images.get(image)
    except LaunchError as error:
        if not isinstance(error.__cause__, ImageNotFound):
            return error
        happened = f"the Docker engine has no image {image!r}"
        remedy = "Make it as docker/README.md tells, or name another: --multihost-docker-image."
        return LaunchError(happened, remedy=remedy)
    finally:
        engine.client.close()
    return None


@contextlib.contextmanager
def told(happened: str, *, remedy: str = "") -> Iterator[None]:
    """Tell what an engine's refusal means.

    Raises:
        LaunchError: The engine refused, or was gone.
    """
    from docker.errors import DockerException

    try:
        yield
    except (DockerException, OSError) as error:  # requests' errors are OSErrors
        seen = str(getattr(error, "explanation", None) or error)
        raise LaunchError(happened, seen=seen, remedy=remedy) from error


def remove_container(container: Any) -> None:  # noqa: ANN401 - docker has no types
    """End a container with all that it runs, and remove it; one that is gone is no error."""
    from docker.errors import APIError

    # 404: it is gone, 409: the engine is about to remove it.
    with contextlib.suppress(APIError, OSError):
        container.remove(force=True, v=True)


def remove_network(network: Any) -> None:  # noqa: ANN401 - docker has no types
    """Remove a network; waits for containers that the engine is about to remove."""
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


def remove_stale(client: Any) -> None:  # noqa: ANN401 - docker has no types
    """Remove what controllers of this machine have left that are gone."""
    wanted = {"label": LABEL}
    for container in client.containers.list(all=True, filters=wanted, ignore_removed=True):
        if is_orphaned(container.labels[LABEL]):
            remove_container(container)
    for network in client.networks.list(filters=wanted):
        if is_orphaned(network.attrs["Labels"][LABEL]):
            remove_network(network)


def _owner() -> str:
    """Return which process this is, unlike any other that ever was."""
    started_s = psutil.Process().create_time()
    return f"{_boot()}/{os.getpid()}/{started_s:.2f}"


def is_orphaned(owner: str) -> bool:
    """Tell whether a label's value names a process of this machine that is gone."""
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


def _mounts(dwelling: Dwelling) -> list[Any]:
    from docker.types import Mount

    shared = outermost(dwelling.shared)
    lent = [path for path in outermost(dwelling.lent) if outermost((*shared, path)) != shared]
    return [
        Mount(str(path), str(path), type="bind", read_only=path in lent)
        for path in (*shared, *lent)
    ]


def outermost(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return those of `paths` that lie beneath no other, each once."""
    found = dict.fromkeys(paths)
    return tuple(path for path in found if not any(parent in found for parent in path.parents))
