"""Start worlds through a server, and replace the server when it dies.

The launch modes are tried from the cheapest to the safest; the first sound one is used.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.launch.capacity import require_room
from pytest_multihost.core.launch.descriptor_limit import require_descriptors
from pytest_multihost.core.launch.interface import ANSWER_S
from pytest_multihost.core.launch.reaper import wait_for_exit
from pytest_multihost.core.launch.refusals import refusals
from pytest_multihost.core.launch.server.world import ServerConnection, ServerWorld, Stream
from pytest_multihost.core.launch.wire import FrameStream
from pytest_multihost.core.model.errors import LaunchError, UnsoundForkError
from pytest_multihost.core.model.event import SENT_BY_RANKS
from pytest_multihost.core.model.messages import (
    Fork,
    HostsProbed,
    ProbeHosts,
    WorldForked,
)
from pytest_multihost.core.model.spec import WorldSpec


@dataclass(slots=True)
class ServerLauncher:
    """Starts worlds through a server.

    Attributes:
        ways: The launch modes that have not turned out to be unsound, by name, the cheapest first;
            the first one is in use. Each function starts a server, and later its replacement.
        reasons: Why each abandoned mode was unsound.
    """

    ways: dict[str, Callable[[], ServerConnection]]
    reasons: list[str] = field(default_factory=list)
    _server: ServerConnection | None = None
    _is_starting: bool = False

    @property
    def name(self) -> str:
        """The launch mode in use, as in the verdict."""
        return next(iter(self.ways))

    def begin_open(self) -> None:
        """Start a server, and return before it can serve; `open` waits for that.

        Raises:
            LaunchError: The server could not be started.
        """
        if self._server is None:
            with refusals("the server that starts the ranks could not be started"):
                self._server = self.ways[self.name]()
            self._is_starting = True

    @property
    def is_ready(self) -> bool:
        """Whether `open` would not wait."""
        if self._server is None or not self._is_starting:
            return self._server is not None
        return bool(select.select([self._server.control], [], [], 0.0)[0])

    def open(self) -> ServerConnection:
        """Start a server in the first launch mode that is sound, and wait until it can serve.

        Raises:
            UnsoundForkError: No launch mode is sound.
            LaunchError: The server could not be started.
        """
        while True:
            try:
                if self._server is None or not self._is_starting:
                    self._server = None
                    self.begin_open()
                assert self._server is not None  # noqa: S101 - for the type checker
                self._is_starting = False
                self._server.await_serving()
            except LaunchError as error:
                self.close()
                if not isinstance(error, UnsoundForkError) or len(self.ways) == 1:
                    raise
                del self.ways[self.name]
                self.reasons.append(error.seen)
            else:
                return self._server

    def close(self) -> None:
        """End the server, and with it all remaining ranks."""
        if self._server is not None:
            self._server.close()

    def clone_server(self, control: int, controller: int) -> int:
        """Have the server fork itself into a new server; see `ServerConnection.clone`.

        Raises:
            LaunchError: There is no server, or it is gone.
        """
        return self._living_server().clone(control, controller)

    def _living_server(self) -> ServerConnection:
        if self._server is None or self._server.is_closed:
            return self.open()
        return self._server

    def start(
        self,
        spec: WorldSpec,
        *,
        directory: Path,
        scratch: Path,
        ranks: Sequence[int] | None = None,
        ports: tuple[int, ...] | None = None,
    ) -> ServerWorld:
        """Start ranks of a world, with a new server if the last one is gone.

        Args:
            directory: Where logs and stacks go.
            scratch: The world's directory for everything else.
            ranks: The ranks to start; None: all.
            ports: The world's ports, if the server of another part of the world holds them.

        Raises:
            LaunchError: The ranks could not be started; none is left running.
        """
        ranks = tuple(range(spec.size) if ranks is None else ranks)
        require_room(len(ranks))
        require_descriptors(len(ranks))
        server = self._living_server()
        server.await_longer(len(ranks))
        request = Fork(
            spec=spec,
            directory=str(directory),
            scratch=str(scratch),
            ranks=ranks,
            ports=ports,
        )
        with (
            refusals("the ranks could not be started"),
            contextlib.ExitStack() as kept,
            contextlib.ExitStack() as sent,
        ):
            streams: dict[int, Stream] = {}
            descriptors = []
            for rank in ranks:
                ours, theirs = socket.socketpair()
                streams[rank] = FrameStream(kept.enter_context(ours), SENT_BY_RANKS)
                descriptors.append(sent.enter_context(theirs).fileno())
            server.send(request, descriptors)
            forked = server.receive(WorldForked)
            kept.callback(server.close)  # with its ranks, if the world cannot be kept
            tables = [socket.socket(fileno=descriptor) for descriptor in forked.descriptors]
            named = dict(zip(forked.message.namespaces, tables, strict=True))
            world = ServerWorld(server, streams, forked.message, named)
            kept.pop_all()
        return world

    @classmethod
    def of_clone(cls, name: str, control: socket.socket, pid: int) -> ServerLauncher:
        """Return an open launcher that uses a server cloned for another process's request.

        Args:
            control: The connection to the server. This launcher cannot replace the server.

        Raises:
            LaunchError: The server does not serve.
        """
        waiting = [control]

        def connect() -> ServerConnection:
            if not waiting:
                raise LaunchError("the server that starts the ranks is gone")
            waiting[0].settimeout(ANSWER_S)
            return ServerConnection(waiting.pop(), pid, reap=_await_end)

        launcher = cls({name: connect})
        launcher.open()
        return launcher

    def why_no_hosts(self, probe: str, scratch: Path) -> LaunchError | None:
        """Return why this machine cannot make hosts of a kind; None if it can.

        Args:
            probe: Import path of the function that checks it: see `HostKind`.
            scratch: A directory that does not exist yet; the probe makes it, and it can be removed.

        Raises:
            LaunchError: The server is gone.
        """
        server = self._living_server()
        server.send(ProbeHosts(probe, str(scratch)))
        found = server.receive(HostsProbed).message
        if not found.happened:
            return None
        return LaunchError(found.happened, seen=found.seen, remedy=found.remedy)


def _await_end(server: int) -> None:
    """Wait for the end of a server that is not a child of this process."""
    with contextlib.suppress(ProcessLookupError):
        wait_for_exit(server)
