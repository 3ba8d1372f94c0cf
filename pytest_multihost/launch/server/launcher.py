"""Launch worlds through a server, and replace the server when it dies."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_multihost.launch.interface import MAX_DESCRIPTORS, Packet, Share
from pytest_multihost.launch.server.connection import ServerConnection
from pytest_multihost.launch.server.world import ServerWorld
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.json_values import to_json
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
            UnsoundForkError: It must not fork ranks; another way of launching is needed.
            LaunchError: It could not be started.
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
            LaunchError: They could not be started; none is left.
        """
        server = self._living_server()
        ranks = range(spec.size) if share is None else share.ranks
        pairs = [socket.socketpair() for _ in ranks]
        try:
            streams = [theirs for _, theirs in pairs]
            packet = _request_fork(server, spec, streams, directory, scratch, share)
        except LaunchError:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        channels = {rank: ours for rank, (ours, _) in zip(ranks, pairs, strict=True)}
        return ServerWorld(server, channels, packet, _tables(server, packet))

    def why_no_hosts(self, scratch: Path) -> LaunchError | None:
        """Return why this machine does not let hosts be made from namespaces; None if it does.

        Args:
            scratch: A directory that does not exist yet; it is made, and can be removed.

        Raises:
            LaunchError: The server is gone.
        """
        server = self._living_server()
        server.tell({"kind": "probe", "scratch": str(scratch)})
        error = server.hear().header["error"]
        return LaunchError(**error) if error else None

    def _living_server(self) -> ServerConnection:
        if self._server is None or self._server.is_closed:
            self.open()
        if self._server is None:
            raise LaunchError("there is no server to start ranks")
        return self._server


def _tables(server: ServerConnection, forked: Packet) -> dict[str, socket.socket]:
    """Return what the tables of sockets are read from, by the names of network namespaces."""
    names, descriptors = forked.header.get("spaces", []), list(forked.descriptors)
    while len(descriptors) < len(names):
        descriptors += server.hear().descriptors
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    return dict(zip(names, sockets, strict=True))


def _request_fork(
    server: ServerConnection,
    spec: WorldSpec,
    streams: Sequence[socket.socket],
    directory: Path,
    scratch: Path,
    share: Share | None,
) -> Packet:
    descriptors = [stream.fileno() for stream in streams]
    header: dict[str, Any] = {
        "kind": "fork",
        "spec": to_json(spec),
        "directory": str(directory),
        "scratch": str(scratch),
    }
    if share is not None:
        header |= {"ranks": share.ranks, "ports": share.ports}
    server.tell(header, descriptors[:MAX_DESCRIPTORS])
    for first in range(MAX_DESCRIPTORS, len(descriptors), MAX_DESCRIPTORS):
        server.tell({"kind": "streams"}, descriptors[first : first + MAX_DESCRIPTORS])
    return server.hear()
