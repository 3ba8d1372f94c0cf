"""Keys of jax's coordination service that a rank sets: it notes them, for ranks that wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_multihost.core.rank.recorder.jax_keys import JaxKeys

CLIENT = object()


@pytest.fixture
def keys(tmp_path: Path) -> JaxKeys:
    """Return what notes keys in a file of the test's folder."""
    found = JaxKeys()
    found.open(f"{tmp_path}/rank-0.keys")
    return found


def noted(keys: JaxKeys) -> list[str]:
    """Return the keys in the file."""
    file = Path(keys.file)
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] * file.exists()


def test_keys_that_are_set_are_noted(keys: JaxKeys) -> None:
    """However they are passed; those that are deleted are left out, and reads are none."""
    keys.note("key_value_set", (CLIENT, "run\nid", "7"), {})
    keys.note("key_value_set_bytes", (CLIENT,), {"key": "config", "value": b""})
    keys.note("key_value_increment", (CLIENT, "count", 1), {})
    keys.note("key_value_try_get", (CLIENT, "other"), {})
    keys.note("key_value_delete", (CLIENT, "config"), {})
    assert noted(keys) == ["run\nid", "count"]


def test_the_last_keys_are_kept(keys: JaxKeys) -> None:
    """A program may set a key at each step."""
    for step in range(100):
        keys.note("key_value_set", (CLIENT, f"step/{step}", ""), {})
    assert noted(keys) == [f"step/{step}" for step in range(60, 100)]


def test_nothing_is_noted_without_a_file(tmp_path: Path) -> None:
    """As in the process from which ranks are forked."""
    JaxKeys().note("key_value_set", (CLIENT, "run_id", "7"), {})
    assert not [*tmp_path.iterdir()]
