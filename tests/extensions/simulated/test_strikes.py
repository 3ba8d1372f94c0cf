"""A timeout that strikes in a simulated world counts as movement, before its rank says anything."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_multihost.extensions.simulated.link import ExchangeLink, Idleness, ask_exchange
from pytest_multihost.extensions.simulated.process import _Process
from pytest_multihost.extensions.simulated.semantics import NCCL
from pytest_multihost.extensions.simulated.service import _Exchange
from pytest_multihost.extensions.simulated.waits import Waits
from pytest_multihost.testing import LaunchError

pytestmark = pytest.mark.unit

LIMIT_S = 0.3


@pytest.fixture
def link(address: str) -> Iterator[ExchangeLink]:
    """Connect the rank."""
    found = ExchangeLink(address, 0)
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
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(found)
        listener.listen()
        serving = _Process(listener, tmp_path, Waits(1, places=1), NCCL)
        thread = threading.Thread(target=serving.serve, args=(reading,))
        thread.start()
        yield found
        os.close(writing)
        thread.join()
        for each in serving.peers.values():
            each.connection.close()
    os.close(reading)


def test_an_exchange_that_has_ended_is_an_error_of_the_harness(address: str) -> None:
    """Its ranks can show nothing any more; while it lives nothing is said."""
    watched = _Exchange(address)
    for _ in range(3):
        watched.check()
    connection = watched.connection
    assert connection is not None
    connection.shutdown(socket.SHUT_RDWR)
    with contextlib.closing(connection), pytest.raises(LaunchError, match="has ended"):
        watched.check()
    watched.close()


def test_an_exchange_that_had_ended_before_the_first_check_is_one_as_well(tmp_path: Path) -> None:
    """Nobody listens any more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "exchange"))
    with pytest.raises(LaunchError, match="has ended"):
        _Exchange(str(tmp_path / "exchange")).check()


def asked(address: str) -> Idleness:
    """Return what the exchange says of itself."""
    found = ask_exchange(address, 10.0)
    assert found is not None
    return found


def test_a_strike_is_the_last_that_has_moved(address: str, link: ExchangeLink) -> None:
    """Until the rank's next message nothing else shows that it goes on."""
    began_s = time.monotonic()
    assert asked(address).last_s <= began_s
    assert link.wait([1], LIMIT_S) == "timeout"
    assert asked(address).last_s >= began_s + LIMIT_S


def test_a_message_is_the_last_that_has_moved(address: str, link: ExchangeLink) -> None:
    """It is answered at once."""
    began_s = time.monotonic()
    link.ask_store("set", ["key", b"value"], 10.0)
    assert asked(address).last_s >= began_s
