"""Launch worlds through a server, and replace the server when it dies.

Ways of launching are tried from the cheapest to the soundest; the first that is sound is used.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.launch.interface import Share
from pytest_multihost.launch.server.world import ServerConnection, ServerWorld, Stream, unexpected
from pytest_multihost.launch.wire import MAX_DESCRIPTORS, Decoder, FrameStream, Packet
from pytest_multihost.model.errors import LaunchError, UnsoundForkError
from pytest_multihost.model.event import SENT_BY_RANKS
from pytest_multihost.model.messages import (
    Fork,
    HostsProbed,
    MoreDescriptors,
    ProbeHosts,
    WorldForked,
)
from pytest_multihost.model.spec import WorldSpec


@dataclass(slots=True)
class ServerLauncher:
    """Starts worlds through a server.

    Attributes:
        name: The way of launching, as the verdict calls it.
        start_server: Starts a server, and later its replacement.
    """

    name: str
    start_server: Callable[[], ServerConnection]
    _server: ServerConnection | None = None

    def open(self) -> None:
        """Start the server and wait until it can serve.

        Raises:
            UnsoundForkError: The server must not fork ranks; another way of launching is needed.
            LaunchError: The server could not be started.
        """
        server = self.start_server()
        try:
            server.await_serving()
        except LaunchError:
            server.close()
            raise
        self._server = server

    def close(self) -> None:
        """End the server, and with it every rank that is left."""
        if self._server is not None:
            self._server.close()

    def start(
        self, spec: WorldSpec, *, directory: Path, scratch: Path, share: Share | None = None
    ) -> ServerWorld:
        """Start the ranks of a world, or a share of them, with a new server if the last is gone.

        Raises:
            LaunchError: The ranks could not be started; none is left running.
        """
        server = self._living_server()
        ranks = tuple(range(spec.size)) if share is None else share.ranks
        request = Fork(
            spec=spec,
            directory=str(directory),
            scratch=str(scratch),
            ranks=ranks,
            ports=share.ports if share is not None else None,
        )
        pairs = [socket.socketpair() for _ in ranks]
        try:
            packet = _fork(server, request, [theirs.fileno() for _, theirs in pairs])
        except LaunchError:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return ServerWorld(
            server,
            {rank: _stream(ours) for rank, (ours, _) in zip(ranks, pairs, strict=True)},
            packet.message,
            _socket_tables(server, packet),
        )

    def why_no_hosts(self, scratch: Path) -> LaunchError | None:
        """Return why this machine cannot make hosts from namespaces; None if it can.

        Args:
            scratch: A directory that does not exist yet; it is made, and can be removed.

        Raises:
            LaunchError: The server is gone.
        """
        server = self._living_server()
        server.send(ProbeHosts(str(scratch)))
        match server.receive():
            case HostsProbed(happened, seen, remedy) if happened:
                return LaunchError(happened, seen=seen, remedy=remedy)
        return None

    def _living_server(self) -> ServerConnection:
        if self._server is None or self._server.is_closed:
            self.open()
        if self._server is None:
            raise LaunchError("there is no server to start ranks")
        return self._server


def _fork(
    server: ServerConnection, request: Fork, descriptors: Sequence[int]
) -> Packet[WorldForked]:
    server.send(request, descriptors[:MAX_DESCRIPTORS])
    for first in range(MAX_DESCRIPTORS, len(descriptors), MAX_DESCRIPTORS):
        server.send(MoreDescriptors(), descriptors[first : first + MAX_DESCRIPTORS])
    packet = server.receive_packet()
    if not isinstance(packet.message, WorldForked):
        raise unexpected(packet.message)
    return Packet(packet.message, packet.descriptors)


def _stream(ours: socket.socket) -> Stream:
    return FrameStream(ours, Decoder(SENT_BY_RANKS))


def _socket_tables(
    server: ServerConnection, forked: Packet[WorldForked]
) -> dict[str, socket.socket]:
    """Return the sockets that read socket tables, by the names of network namespaces."""
    names, descriptors = forked.message.namespaces, list(forked.descriptors)
    while len(descriptors) < len(names):
        descriptors += server.receive_packet().descriptors
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    return dict(zip(names, sockets, strict=True))


@dataclass(slots=True)
class FallbackLauncher:
    """A launcher that falls back to the next when the one in use turns out to be unsound.

    Attributes:
        launchers: The remaining ones, the cheapest first; the first one is in use.
        reasons: Why each abandoned launcher was unsound.
    """

    launchers: list[ServerLauncher]
    reasons: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The way of launching in use."""
        return self.launchers[0].name

    def open(self) -> None:
        """Start a server of the first launcher that is sound.

        Raises:
            UnsoundForkError: None is sound.
            LaunchError: A server could not be started.
        """
        while True:
            try:
                return self.launchers[0].open()
            except UnsoundForkError as error:
                self._fall_back(error)

    def start(
        self, spec: WorldSpec, *, directory: Path, scratch: Path, share: Share | None = None
    ) -> ServerWorld:
        """Start a world, or a share of it; the launcher in use may have become unsound meanwhile.

        Raises:
            LaunchError: The ranks could not be started.
        """
        while True:
            try:
                return self.launchers[0].start(
                    spec, directory=directory, scratch=scratch, share=share
                )
            except UnsoundForkError as error:
                self._fall_back(error)

    def why_no_hosts(self, scratch: Path) -> LaunchError | None:
        """Return why this machine cannot make hosts from namespaces; None if it can."""
        return self.launchers[0].why_no_hosts(scratch)

    def _fall_back(self, error: UnsoundForkError) -> None:
        if len(self.launchers) == 1:
            raise error
        self.launchers.pop(0).close()
        self.reasons.append(error.seen)

    def close(self) -> None:
        """End the server."""
        self.launchers[0].close()
