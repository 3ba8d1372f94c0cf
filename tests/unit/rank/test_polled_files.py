"""Ranks that poll for a file, from hand-made facts; and how the file is found in a frame."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import FrameType

from pytest_multihost.core.rank.polled_files import polled_file
from pytest_multihost.testing import Frame

FRAME = Frame("/t.py", 3, "wait")


def _interrupted() -> FrameType:
    """Return the caller's frame, as a signal would interrupt it."""
    return sys._getframe(1)


def waits_for(path: Path) -> FrameType:
    """Poll for a file, once."""
    while not os.path.exists(path / f"{'a'}.lock"):  # noqa: PTH110 - as programs do it
        return _interrupted()
    return _interrupted()


def takes(path: str) -> FrameType:
    """Try to create a file, once."""
    for _ in range(1):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return _interrupted()
    return _interrupted()


def works(path: str) -> FrameType:
    """Read a file in a loop: it asks for no file, nor does it create one."""
    for _ in range(1):
        with open(path) as file:  # noqa: PTH123 - as programs do it
            file.read()
        time.sleep(0.0)
        return _interrupted()
    return _interrupted()


def test_a_loop_that_asks_for_a_file_polls_for_it(tmp_path: Path) -> None:
    """It is one that may not exist yet."""
    found = polled_file(waits_for(tmp_path))
    assert found is not None
    assert (found.path, found.exists) == (str(tmp_path / "a.lock"), False)


def test_a_loop_that_tries_to_create_a_file_polls_for_it(tmp_path: Path) -> None:
    """Somebody else has made it."""
    lock = tmp_path / "lock"
    lock.touch()
    found = polled_file(takes(str(lock)))
    assert found is not None
    assert (found.path, found.exists) == (str(lock), True)


def test_a_loop_that_reads_a_file_does_not_poll(tmp_path: Path) -> None:
    """It looks alike, and works."""
    (tmp_path / "data").touch()
    assert polled_file(works(str(tmp_path / "data"))) is None
