"""A world whose ranks several servers have started."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_multihost.core.launch import Ending
from pytest_multihost.core.launch.composite_world import CompositeWorld
from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.testing import Event, LaunchError, Release, make_event


@dataclass
class Share:
    """Two ranks whose server says what it is given to say."""

    ranks: tuple[int, ...]
    told: list[Event] = field(default_factory=list)
    is_gone: bool = False
    asked: list[Any] = field(default_factory=list)

    has_events = False
    moved_bytes = 0
    poll_events = select.POLLIN

    def __post_init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def fileno(self) -> int:
        return self.ours.fileno()

    def says(self, *events: Event) -> None:
        self.told = list(events)
        self.theirs.send(b".")

    def goes(self) -> None:
        self.is_gone = True
        self.theirs.send(b".")

    def wait(self, timeout_s: float) -> list[Event]:
        self._require_server()
        told, self.told = self.told, []
        return told

    def confirm(self) -> None:
        self._require_server()

    def send(self, rank: int, frame: WireFrame[Any]) -> None:
        self.asked.append(("send", rank))

    def request_dumps(self, ranks: list[int], kind: str) -> None:
        self._require_server()
        self.asked.append(("dumps", ranks))

    def begin_end(self, *, grace_s: float) -> None:
        self._require_server()
        self.asked.append(("end", grace_s))

    def finish_end(self) -> Ending:
        return Ending((exited(self.ranks[0]),), (f"left by {[*self.ranks]}",))

    def collect_dumps(self) -> None:
        pass

    def close(self) -> None:
        self.asked.append("closed")

    def _require_server(self) -> None:
        if self.is_gone:
            raise LaunchError("the server is gone")


def exited(rank: int, at_s: float = 1.0) -> Event:
    """Return the end of a rank."""
    return make_event(at_s, rank, "exited", {"code": 0, "signal": None})


@pytest.fixture
def shares() -> Iterator[list[Share]]:
    """Two servers with two ranks each."""
    found = [Share((0, 1)), Share((2, 3))]
    yield found
    for each in found:
        each.ours.close()
        each.theirs.close()


def test_events_of_all_servers_come_in_order(shares: list[Share]) -> None:
    """By their times, which are of one clock."""
    world = CompositeWorld(shares)
    shares[0].says(exited(0, 2.0))
    shares[1].says(exited(3, 1.0))
    assert [event.rank for event in world.wait(1.0)] == [3, 0]


def test_requests_go_to_the_servers_of_the_ranks(shares: list[Share]) -> None:
    """Each is asked for its own ranks alone."""
    world = CompositeWorld(shares)
    world.request_dumps([0, 2, 3], "main")
    world.send(3, WireFrame(Release("go")))
    assert shares[0].asked == [("dumps", [0])]
    assert shares[1].asked == [("dumps", [2, 3]), ("send", 3)]


def test_a_server_that_does_not_confirm_is_lost(shares: list[Share]) -> None:
    """Nothing is asked of it any more."""
    world = CompositeWorld(shares)
    world.confirm()
    shares[1].is_gone = True
    with pytest.raises(LaunchError, match="the server is gone"):
        world.confirm()
    assert shares[1].asked == ["closed"]


def test_a_world_is_lost_with_one_of_its_servers(shares: list[Share]) -> None:
    """The wait raises, and the lost server is closed and asked for nothing any more."""
    world = CompositeWorld(shares)
    shares[1].goes()
    with pytest.raises(LaunchError, match="the server is gone"):
        world.wait(1.0)
    world.send(3, WireFrame(Release("go")))
    assert shares[1].asked == ["closed"]


def test_a_request_to_a_server_that_is_gone_loses_the_world(shares: list[Share]) -> None:
    """That a request fails may be the first sign."""
    world = CompositeWorld(shares)
    shares[1].is_gone = True
    with pytest.raises(LaunchError, match="the server is gone"):
        world.request_dumps([0, 2], "main")
    assert shares[0].asked == [("dumps", [0])]
    assert shares[1].asked == ["closed"]


def test_the_end_is_begun_everywhere_before_it_is_awaited(shares: list[Share]) -> None:
    """One grace for all, and what each has found."""
    ending = CompositeWorld(shares).end(grace_s=2.0)
    assert [share.asked for share in shares] == [[("end", 2.0), "closed"]] * 2
    assert [event.rank for event in ending.events] == [0, 2]
    assert ending.leftovers == ("left by [0, 1]", "left by [2, 3]")


def test_the_ranks_of_the_other_servers_are_ended_when_one_is_lost(shares: list[Share]) -> None:
    """The end raises nothing, and says what the living servers have found."""
    shares[0].is_gone = True
    ending = CompositeWorld(shares).end(grace_s=0.0)
    assert shares[1].asked == [("end", 0.0), "closed"]
    assert [event.rank for event in ending.events] == [2]
    assert ending.leftovers == ("left by [2, 3]",)
