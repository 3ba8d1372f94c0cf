"""Servers among the ranks of a job that is looked at from outside."""

from __future__ import annotations

import builders

from pytest_multihost.extensions.live.look import without_servers
from pytest_multihost.testing import Dump, Frame, Operation, ThreadStack

ACCEPTS = builders.operation("poll", kind="wait", sequence=0, source="proc", group=(0, 1, 2))
ASKS = builders.operation(
    "recvfrom", kind="transfer", sequence=0, source="proc", group=(0, 1), peer=0
)
SERVES = Frame("/usr/lib/python3.11/socketserver.py", 233, "BaseServer.serve_forever")
ACCEPT = Frame("/usr/lib/python3.11/socket.py", 294, "socket.accept")


def left(waits: dict[int, Operation], frame: Frame) -> set[int]:
    """Return the ranks that wait at sockets, where the main thread of rank 0 is at a frame."""
    dump = Dump(0, "py-spy", (ThreadStack("MainThread", (frame,)),))
    return {*without_servers(waits, [dump])}


def test_a_server_that_is_asked_waits_for_no_other_client() -> None:
    """An innocent: rank 2 never connects, and nobody needs it to."""
    assert left({0: ACCEPTS, 1: ASKS}, SERVES) == {1}


def test_a_rank_that_accepts_one_client_after_another_waits_for_the_next() -> None:
    """Rank 1 has to wait until rank 2 has come."""
    assert left({0: ACCEPTS, 1: ASKS}, ACCEPT) == {0, 1}


def test_a_server_that_nobody_asks_waits_for_a_client() -> None:
    """Whoever should have connected is missing."""
    assert left({0: ACCEPTS}, SERVES) == {0}
