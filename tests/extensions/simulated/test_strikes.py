"""A timeout that strikes in a simulated world counts as movement, before its rank says anything."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_multihost.extensions.simulated import process
from pytest_multihost.extensions.simulated.link import Idleness, Link, ask_exchange
from pytest_multihost.extensions.simulated.process import _Process
from pytest_multihost.extensions.simulated.waits import Waits

pytestmark = pytest.mark.unit

LIMIT_S = 0.3


@pytest.fixture
def link(address: str) -> Iterator[Link]:
    """Connect the rank."""
    found = Link(address, 0)
    found.connect()
    yield found
    connection = found._local.connection
    assert connection is not None
    connection.close()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve a world of one rank in a thread."""
    found = str(tmp_path / "exchange")
    reading, writing = os.pipe()
    with process.socket.socket(process.socket.AF_UNIX) as listener:
        listener.bind(found)
        listener.listen()
        serving = _Process(listener, tmp_path, Waits(1, places=1))
        thread = threading.Thread(target=serving.serve, args=(reading,))
        thread.start()
        yield found
        os.close(writing)
        thread.join()
    os.close(reading)


def asked(address: str) -> Idleness:
    """Return what the exchange says of itself."""
    found = ask_exchange(address, 10.0)
    assert found is not None
    return found


def test_a_strike_is_the_last_that_has_moved(address: str, link: Link) -> None:
    """Until the rank's next message nothing else shows that it goes on."""
    began_s = time.monotonic()
    assert asked(address).last_s <= began_s
    assert link.wait([1], LIMIT_S) == "timeout"
    assert asked(address).last_s >= began_s + LIMIT_S


def test_a_message_is_the_last_that_has_moved(address: str, link: Link) -> None:
    """It is answered at once."""
    began_s = time.monotonic()
    link.ask_store("set", ["key", b"value"], 10.0)
    assert asked(address).last_s >= began_s
