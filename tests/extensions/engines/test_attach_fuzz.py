"""Whatever comes over a connection of an attached run ends at most that connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest
from hostile import SECRET, TARGETS, ListenerTarget, fuzz

from pytest_multihost.extensions.engines.attach import admission

pytestmark = pytest.mark.unit

INPUTS = 150
"""As many as the suite has time for; `make fuzz` takes more."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_no_input_does_more_than_end_its_own_connection(target) -> None:
    """No exception escapes, nothing is kept, and a peer that comes after it is admitted."""
    assert fuzz(target, INPUTS).inputs >= INPUTS


def test_strangers_that_stay_take_no_slot_from_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many the oldest is closed; those that are left are closed when their time is over."""
    monkeypatch.setattr(admission, "PROVE_S", 2.0)
    target, strangers = ListenerTarget(), contextlib.ExitStack()
    pending = target.listener._admission._pending
    with strangers, contextlib.closing(target):
        for _ in range(admission._MAX_PENDING + 60):
            stream = strangers.enter_context(socket.create_connection(target.address))
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                stream.send(b"p")
            target._turn()
            assert len(pending) <= admission._MAX_PENDING
        with target._connected() as peer:
            peer.sendall(target._proof(peer, SECRET, 1, 3))
            target._turn_until(lambda: 1 in target.listener.peers)
        target._forget_peers()
        assert len(pending) > 1
        time.sleep(2.0)
        target._turn_until(lambda: not pending)
