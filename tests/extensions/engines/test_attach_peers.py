"""Other processes of an attached run: what becomes of their signals, and of a server that dies."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_multihost.core.launch import FrameStream, WireFrame
from pytest_multihost.extensions.engines.attach import Peer
from pytest_multihost.extensions.engines.peer_server import PeerServer, _LocalRanks
from pytest_multihost.testing import (
    DumpsWritten,
    FromPeer,
    LaunchError,
    PauseRank,
    PeerHello,
    Quit,
    RanksLost,
    RequestDumps,
    Signalled,
    ToPeer,
    WorldEnded,
)

pytestmark = pytest.mark.processes

Pair = tuple[FrameStream[Any], FrameStream[Any]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a connection: the controller's and the peer's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield FrameStream(ours, FromPeer), FrameStream(theirs, ToPeer)


def send(stream: FrameStream[Any], *messages: FromPeer | ToPeer) -> None:
    """Send messages, and wait until they are on their way."""
    for each in messages:
        stream.send(WireFrame(each))
    stream.drain(time.monotonic() + 5)


def test_a_signal_that_comes_as_a_world_ends_ends_the_run(pair: Pair) -> None:
    """The frames of the world are read up; the signal is for the run."""
    ours, theirs = pair
    peer = Peer(1, ours, PeerHello("there", pid=7))
    send(theirs, Signalled("SIGTERM"), WorldEnded(()))
    assert len(peer.take_arrived()) == 2
    assert peer.interruption == "SIGTERM to rank 1's process (pid 7 on there)"


def test_the_name_of_a_process_is_one_printable_line(pair: Pair) -> None:
    """Its host is what the process calls it."""
    peer = Peer(1, pair[0], PeerHello("n1\x1b]0;mine\x07\n::error::x", pid=7))
    assert peer.name.isprintable()


class Lost:
    """Ranks of which the server has died."""

    poll_events = 0

    def __init__(self, connection: socket.socket) -> None:
        self.fileno = connection.fileno

    def _fail(self, *_: object) -> None:
        raise LaunchError("the server is gone", seen="it closed its connection")

    request = request_dumps = wait = _fail


@pytest.mark.parametrize(
    "request_", [PauseRank(1, None), RequestDumps((1,), "threads")], ids=["pause", "dumps"]
)
def test_a_request_to_a_server_that_has_died_ends_only_its_ranks(
    pair: Pair, tmp_path: Path, request_: ToPeer
) -> None:
    """The process goes on, tells rank 0 once, and can start the ranks of the next world."""
    ours, theirs = pair
    status: list[int] = []
    with socket.socket() as unused:
        local = _LocalRanks(Lost(unused), tmp_path, tmp_path, None, SimpleNamespace(), ())
        server = PeerServer(theirs, lambda _: None, tmp_path, local)
        serving = threading.Thread(target=lambda: status.append(server.serve()), daemon=True)
        send(ours, request_, Quit(3))
        serving.start()
        serving.join(10)
    assert status == [3]
    told = [each.message for each in ours.await_frames(time.monotonic() + 5)]
    assert [type(each) for each in told] == [RanksLost]


def test_a_request_for_stacks_of_lost_ranks_says_that_they_are_lost(pair: Pair) -> None:
    """They had been started."""
    ours, theirs = pair
    peer = Peer(1, ours, PeerHello("there", pid=7))
    answer = peer.request(RequestDumps((1,), "threads"), DumpsWritten, within_s=5)
    server = PeerServer(theirs, lambda _: None, Path())
    [frame] = theirs.await_frames(time.monotonic() + 5)
    server._handle(frame)
    with pytest.raises(LaunchError, match=r"^the ranks of .* are lost"):
        answer()
