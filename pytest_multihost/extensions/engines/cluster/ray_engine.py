"""Ray: a placement group with one bundle on each node, and in each an actor that starts a peer.

Ray's client runs in a process of its own (`ray_client`), because it handles SIGTERM and starts
threads: in pytest's process, a signal would end one test and not the run. Both processes are
connected by a socket, over which the client passes one socket for each node.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_multihost.core import files
from pytest_multihost.core.launch.job_spec import memory_file
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.model.errors import LaunchError, SettingError, shown
from pytest_multihost.extensions.engines.cluster.command_node import (
    describe_code,
    end_commands,
    last_lines,
    without_secrets,
)
from pytest_multihost.extensions.engines.driver.options import RAY
from pytest_multihost.extensions.engines.engine import Engine, StartRequest

_CODE = "from pytest_multihost.extensions.engines.cluster.ray_client import main; main()"
_MAX_MESSAGE = 1 << 16


@dataclass(slots=True)
class RayNode:
    """A node of a Ray cluster.

    Attributes:
        how: How the peer has ended; empty while it runs.
        pid: None: Ray's client carries the bytes of all nodes.
    """

    name: str
    connection: socket.socket
    fleet: RayFleet = field(repr=False)
    how: str = ""
    words: str = ""
    pid: int | None = None

    def ended(self) -> str:
        """Return how the peer has ended; empty while it runs."""
        self.fleet.read()
        return self.how or self.fleet.client_ended()

    def last_words(self) -> str:
        """Return the last lines of the peer's standard error, or of Ray's client if that died."""
        return self.words if self.how else self.fleet.client_words()


@dataclass(slots=True)
class RayFleet:
    """The nodes of a placement group.

    Attributes:
        errors: The file with its standard error.
    """

    client: subprocess.Popen[bytes]
    control: socket.socket
    errors: Path
    _nodes: list[RayNode] = field(default_factory=list)
    _is_complete: bool = False
    _waiting: str = ""
    _failure: str = ""

    def nodes(self) -> Sequence[RayNode] | None:
        """Return the nodes; None while the placement group waits.

        Raises:
            LaunchError: Ray's client has failed.
        """
        self.read()
        if not self._is_complete and (self._failure or self.client_ended()):
            raise LaunchError(
                "Ray has not started the peers",
                seen=self._failure or f"Its client: {self.client_ended()}\n{self.client_words()}",
                remedy="ray status shows the cluster; RAY_ADDRESS or ray:ADDRESS names it.",
            )
        return self._nodes if self._is_complete else None

    def read(self) -> None:
        """Read the client's messages: each message is one packet, with a node's socket."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.control, _MAX_MESSAGE, 1)
            except (BlockingIOError, OSError):
                return
            if not data:
                return
            self._take(json.loads(data), descriptors)

    def _take(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        match message:
            case {"waiting": str(why)}:
                self._waiting = why
            case {"failed": str(why)}:
                self._failure = why
            case {"node": str(name)}:
                connection = socket.socket(fileno=descriptors[0])
                connection.set_inheritable(False)
                self._nodes.append(RayNode(name, connection, self))
            case {"complete": True}:
                self._is_complete = True
            case {"ended": int(index), "how": str(how), "words": str(words)}:
                self._nodes[index].how, self._nodes[index].words = how, words

    def client_ended(self) -> str:
        """Return how Ray's client has ended; empty while it runs."""
        return describe_code(self.client.poll())

    def client_words(self) -> str:
        """Return the last lines of the client's standard error."""
        return last_lines(self.errors)

    def waiting(self) -> str:
        """Return the resources that the placement group waits for."""
        return self._waiting

    def why_lost(self, index: int) -> str:
        """Return how a node's actor or peer has ended."""
        node = self._nodes[index]
        return "\n".join(filter(None, (node.ended(), node.last_words())))

    def failed(self) -> Sequence[str]:
        """Return nothing: the engine itself ends its actors."""
        return ()

    def stop(self) -> None:
        """End the peers, the actors and Ray's client."""
        for each in self._nodes:
            each.connection.close()
        self.control.close()
        end_commands([self.client])


def begin_ray(text: str, request: StartRequest) -> RayFleet:
    """Start Ray's client.

    Args:
        text: The cluster's address, as for `ray.init`; empty: RAY_ADDRESS, or the cluster of this
            machine.

    Raises:
        SettingError: The address is one of a connection from outside.
        LaunchError: It cannot be started.
    """
    address = _address(text)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    options = request.settings.get(RAY)
    job = {
        "address": address,
        "python": request.python,
        "code": request.code,
        "count": request.count,
        "runtime_env": options.get("runtime_env", {}),
        "resources": options.get("resources", {"CPU": 1}),
        "control": theirs.fileno(),
        "parent": os.getpid(),
    }
    errors = request.folder / "ray-client.err"
    with theirs, files.appending(errors) as log:
        described = memory_file(job)
        try:
            client = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(described)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno(), described],
                start_new_session=True,
                env=without_secrets(os.environ),
            )
        except OSError as error:
            ours.close()
            raise LaunchError("Ray's client cannot be started", seen=str(error)) from error
        finally:
            os.close(described)
    with contextlib.suppress(OSError):
        ours.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return RayFleet(client, close_in_children(ours), errors)


def _address(text: str) -> str:
    """Return the address for `ray.init`.

    Raises:
        SettingError: It is of a connection from outside the cluster.
    """
    address = text or os.environ.get("RAY_ADDRESS", "auto")
    if address.startswith(("//", "ray://")):  # --multihost-on ray://... names the engine `ray`
        raise SettingError(
            "an address that begins with ray:// is no longer supported",
            seen=f"It is {shown(f'ray:{text}' if text else address)}.",
            remedy="Run pytest as a job of the cluster:"
            " ray job submit --working-dir . -- pytest --multihost-on ray",
        )
    return address


RAY_ENGINE = Engine(name="ray", begin=begin_ray)
