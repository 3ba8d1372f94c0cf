"""Ranks that wait for each other at sockets of their own, of which no recorder knows."""

from __future__ import annotations

import pytest

PRELUDE = """
import os, socket, threading, time
import pytest

@pytest.fixture
def peers(world, shared_tmp_path):
    '''A star: the primary is connected with all others.'''
    place = shared_tmp_path / "port"
    if world.is_primary:
        server = socket.create_server(("127.0.0.1", 0))
        place.with_suffix(".new").write_text(str(server.getsockname()[1]))
        place.with_suffix(".new").rename(place)
        found = [server.accept()[0] for _ in range(world.size - 1)]
    else:
        while not place.exists():
            time.sleep(0.01)
        found = [socket.create_connection(("127.0.0.1", int(place.read_text())))]
    yield found
"""


@pytest.mark.program(
    PRELUDE
    + """
@pytest.mark.multihost(ranks=3, timeout=30)
def test_late(world, peers):
    if world.is_primary:
        time.sleep(600)
    peers[0].recv(1)

@pytest.mark.multihost(ranks=2, timeout=30)
def test_circle(world, peers):
    peers[0].recv(1)

@pytest.mark.multihost(ranks=2, timeout=30)
def test_failure(world, peers):
    assert world.rank
    peers[0].recv(1)

@pytest.mark.multihost(ranks=2, timeout=30)
def test_server(world, peers):
    if world.is_primary:
        threading.Thread(target=peers[0].recv, args=(1,), daemon=True).start()
        time.sleep(600)
    peers[0].recv(1)
"""
)
def test_who_holds_the_other_end_is_waited_for(worlds) -> None:
    """Late, in a circle, after an exception; but no thread that serves, whatever it waits for."""
    worlds.run.assert_outcomes(failed=4)
    found = {name: verdict["diagnosis"] for name, verdict in worlds.verdicts.items()}
    assert {
        name: (each["kind"], each["culprits"], each["waiting"]) for name, each in found.items()
    } == {
        "test_late": ("straggler", [0], [1, 2]),
        "test_circle": ("deadlock", [], [0, 1]),
        "test_failure": ("raised", [0], [1]),
        "test_server": ("unknown", [], []),
    }
    assert "rank 0 never did its part in recvfrom of rank 1" in worlds.stdout
