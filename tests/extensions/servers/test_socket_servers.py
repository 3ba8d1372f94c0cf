"""A thread that waits for requests in turns has a name of its own in the kernel meanwhile."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import await_that

from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.slots import SlotPage
from pytest_multihost.extensions.servers.socket_servers import mark_servers

pytestmark = pytest.mark.unit

SERVES_IN_TURNS = "serves in turns"
"""The name of a thread that waits for requests in turns; `core.model.process` has it, too."""


class Names(socketserver.StreamRequestHandler):
    """Answers a request with the name that its thread has in the kernel."""

    def handle(self) -> None:
        """Answer."""
        self.wfile.write(name_of(threading.get_native_id()).encode())


class CountingServer(socketserver.TCPServer):
    """A server whose turns do something: each may bring the end of another wait.

    Attributes:
        turns: How many turns have ended.
    """

    turns = 0

    def service_actions(self) -> None:
        """Count the turn."""
        self.turns += 1


def name_of(thread: int | None) -> str:
    """Return the name of a thread of this process."""
    return Path(f"/proc/self/task/{thread}/comm").read_text().rstrip("\n")


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark the turns of servers until the test ends."""
    monkeypatch.setattr(socketserver.BaseServer, "shutdown", socketserver.BaseServer.shutdown)
    monkeypatch.setattr(socketserver, "_ServerSelector", socketserver._ServerSelector)
    mark_servers(Recorder(SlotPage.create(tmp_path / "slots"), rank=0, size=1))


@contextlib.contextmanager
def serving(server: socketserver.TCPServer, turn_s: float) -> Iterator[threading.Thread]:
    """Serve in a thread, in turns of so many seconds; yield the thread."""
    thread = threading.Thread(target=server.serve_forever, args=(turn_s,))
    thread.start()
    try:
        yield thread
    finally:
        ending = threading.Thread(target=server.shutdown)
        ending.start()
        await_that(lambda: server._BaseServer__shutdown_request or not thread.is_alive())
        end_turn(server)
        ending.join()
        thread.join()


def ask(server: socketserver.TCPServer) -> str:
    """Return the answer of a server."""
    with socket.create_connection(server.server_address[:2], timeout=60) as connection:
        return connection.makefile().read()


def end_turn(server: socketserver.TCPServer) -> None:
    """Connect to a server that is shut down: it answers no more, but its turn ends."""
    socket.create_connection(server.server_address[:2], timeout=60).close()


@pytest.fixture
def server() -> Iterator[socketserver.TCPServer]:
    """A server of Python's own class."""
    with socketserver.TCPServer(("127.0.0.1", 0), Names) as found:
        yield found


@pytest.mark.usefixtures("marked")
def test_a_thread_has_the_name_while_it_waits_for_a_request(server) -> None:
    """And its own name while it answers one."""
    with serving(server, 60) as thread:
        await_that(lambda: name_of(thread.native_id) == SERVES_IN_TURNS)
        assert ask(server) not in ("", SERVES_IN_TURNS)
        await_that(lambda: name_of(thread.native_id) == SERVES_IN_TURNS)


@pytest.mark.usefixtures("marked")
def test_no_turn_is_marked_while_a_thread_shuts_the_server_down(server) -> None:
    """The end of the turn lets that thread go on, so the wait is one that ends."""
    with serving(server, 60) as thread:
        await_that(lambda: name_of(thread.native_id) == SERVES_IN_TURNS)
        ending = threading.Thread(target=server.shutdown)
        ending.start()
        await_that(lambda: name_of(thread.native_id) != SERVES_IN_TURNS)
        assert ending.is_alive()
        end_turn(server)
        ending.join()


@pytest.mark.usefixtures("marked")
def test_turns_of_a_server_that_acts_in_them_are_not_marked() -> None:
    """Any of them may do what another rank waits for."""
    with CountingServer(("127.0.0.1", 0), Names) as server, serving(server, 0.02) as thread:
        seen = set()
        while server.turns < 20:
            seen.add(name_of(thread.native_id))
        assert SERVES_IN_TURNS not in seen
