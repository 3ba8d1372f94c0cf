"""The actor that starts a peer on a node of Ray, without Ray."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pytest_multihost.extensions.engines.cluster.ray_peer import PeerActor


def test_a_peer_of_an_actor_that_is_ended_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray ends an actor without a last call, so the peer's errors are in a file without a name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    actor = PeerActor()
    actor.start(None, "import sys; sys.exit('no torch here')", in_copy=False)
    assert actor.read() == b""
    assert not list(tmp_path.iterdir())
    assert actor.ended() == ("exit code 1", "no torch here")
