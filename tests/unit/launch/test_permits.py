"""Worlds of several controllers share permits, and none waits without an end."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from pytest_multihost.core.launch import permits
from pytest_multihost.core.launch.permits import hold_permits


@pytest.mark.parametrize("name", ["gate", "0", "1"])
def test_a_world_begins_though_somebody_holds_its_permits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time in which no world of ours would still run."""
    monkeypatch.setattr(permits, "LONGEST_S", 0.3)
    with hold_permits(tmp_path, 2, count=2):
        pass
    descriptor = os.open(tmp_path / name, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with hold_permits(tmp_path, 2, count=2):
        os.close(descriptor)


def test_permits_of_sound_worlds_still_keep_them_apart(tmp_path: Path) -> None:
    """A world that needs all permits waits for one that has some."""
    order: list[str] = []

    def run() -> None:
        with hold_permits(tmp_path, 4, count=4):
            order.append("second")

    other = threading.Thread(target=run)
    with hold_permits(tmp_path, 1, count=4):
        other.start()
        time.sleep(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
