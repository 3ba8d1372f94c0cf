"""Ways of launching: the cheapest that is sound, and never back down."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.core.launch.packets import Packet
from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.testing import LaunchError, UnsoundForkError, WorldForked, make_spec

NOWHERE = Path("/nonexistent")


@dataclass
class Server:
    """A server that raises what it is given each time that it is started, and notes what it did."""

    starts: list[Exception | None] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    is_closed: bool = True
    control: socket.socket | None = None

    def start(self) -> Any:  # noqa: ANN401 - stands for a connection
        self.did.append("start")
        self.is_closed = False
        return self

    def await_serving(self) -> None:
        if self.starts and (error := self.starts.pop(0)) is not None:
            raise error

    def await_longer(self, ranks: int) -> None:
        """Do nothing: it answers at once."""

    def send(self, *_: object) -> None:
        self.did.append("world")
        self.control = self.control or socket.socket()

    def receive(self, *_: object) -> Packet[WorldForked]:
        return Packet(WorldForked(pids=(1, 2), ports=(1, 2), at_s=0.0))

    def close(self) -> None:
        self.did.append("close")
        self.is_closed = True
        if self.control is not None:
            self.control.close()


def ladder(**servers: Server) -> ServerLauncher:
    """Return a launcher whose ways start fakes, by their names."""
    return ServerLauncher({name: server.start for name, server in servers.items()})


def unsound(seen: str) -> UnsoundForkError:
    """Return the error of a server that must not fork ranks."""
    return UnsoundForkError("it cannot be forked", seen=seen)


def start_world(launcher: ServerLauncher) -> None:
    """Start a world, and close its streams."""
    launcher.start(make_spec(2), directory=NOWHERE, scratch=NOWHERE).close()


def test_the_cheapest_sound_way_is_used() -> None:
    """The next way is not tried."""
    fork, server = Server(), Server()
    found = ladder(fork=fork, server=server)
    found.open()
    start_world(found)
    found.close()
    assert (found.name, found.reasons) == ("fork", [])
    assert (fork.did, server.did) == (["start", "world", "close"], [])


def test_an_unsound_way_is_left_with_its_reason() -> None:
    """The header says what forced the next way."""
    fork, server = Server([unsound("2 threads")]), Server()
    found = ladder(fork=fork, server=server)
    found.open()
    assert (found.name, found.reasons) == ("server", ["2 threads"])
    assert fork.did == ["start", "close"]


def test_a_way_can_become_unsound_between_two_worlds() -> None:
    """The world that finds out is started in the next way, and so are all after it."""
    fork, server = Server([None, unsound("a jax backend")]), Server()
    found = ladder(fork=fork, server=server)
    found.open()
    fork.close()
    start_world(found)
    start_world(found)
    found.close()
    assert fork.did == ["start", "close", "start", "close"]
    assert server.did == ["start", "world", "world", "close"]


def test_where_no_way_is_sound_the_last_reason_is_raised() -> None:
    """There is no other way left."""
    found = ladder(
        fork=Server([unsound("threads")]), server=Server([unsound("a module-level array")])
    )
    with pytest.raises(UnsoundForkError, match="a module-level array"):
        found.open()


def test_a_way_that_fails_is_not_unsound() -> None:
    """A server that could not be started says nothing of the next way."""
    server = Server()
    with pytest.raises(LaunchError, match="no ports"):
        ladder(fork=Server([LaunchError("no ports")]), server=server).open()
    assert server.did == []


def test_closing_ends_the_server_in_use() -> None:
    """The others have none."""
    fork, server = Server([unsound("threads")]), Server()
    found = ladder(fork=fork, server=server)
    found.open()
    found.close()
    assert server.did == ["start", "close"]
