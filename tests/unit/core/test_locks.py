"""Nobody waits for a lock without an end: a process that never ends may hold it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_multihost.core import files, locks
from pytest_multihost.core.locks import lock, open_lock

pytestmark = pytest.mark.unit


@contextlib.contextmanager
def held(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock by a descriptor that may only read, as another user would."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, kind)
    yield
    os.close(descriptor)


def test_a_line_is_appended_though_somebody_holds_the_lock(tmp_path: Path) -> None:
    """Reading it is enough to lock it."""
    path = tmp_path / "verdicts.jsonl"
    files.append(path, "one\n")
    with held(path):
        files.append(path, "two\n")
    with held(path, fcntl.LOCK_SH):
        files.append(path, "three\n")
    assert path.read_text() == "one\ntwo\nthree\n"


def test_a_folder_is_held_though_somebody_holds_its_lock(tmp_path: Path) -> None:
    """And is not removed, because it is in use."""
    files.hold(tmp_path / "run")
    with held(tmp_path / "run/.lock", fcntl.LOCK_SH):
        files.hold(tmp_path / "run")
        files.remove_unheld(tmp_path / "run")
    assert (tmp_path / "run").is_dir()


def test_only_this_user_may_open_a_file_to_be_locked(tmp_path: Path) -> None:
    """Also one that an earlier version has made for everybody; a link is not opened."""
    path = tmp_path / "lock"
    path.touch(mode=0o644)
    path.chmod(0o644)
    os.close(open_lock(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    with contextlib.suppress(OSError):
        os.close(open_lock(tmp_path / "fifo"))  # it waits for nobody


def test_processes_of_one_user_are_kept_in_order(tmp_path: Path) -> None:
    """Who waits gets the lock as soon as it is free, long before the end of his patience."""
    first, second = open_lock(tmp_path / "lock"), open_lock(tmp_path / "lock")
    assert lock(first, within_s=0)
    assert not lock(second, within_s=0)
    threading.Timer(0.1, os.close, [first]).start()
    began_s = time.monotonic()
    assert lock(second, within_s=locks.LONGEST_S)
    assert time.monotonic() - began_s >= 0.05
    os.close(second)


def test_locks_of_readers_are_shared(tmp_path: Path) -> None:
    """Two hold it at once, and a writer does not."""
    descriptors = [open_lock(tmp_path / "lock") for _ in range(3)]
    assert lock(descriptors[0], within_s=0, shared=True)
    assert lock(descriptors[1], within_s=0, shared=True)
    assert not lock(descriptors[2], within_s=0)
    for each in descriptors:
        os.close(each)
