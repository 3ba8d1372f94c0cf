"""Whether a process that does not have some shared memory can still open it."""

from __future__ import annotations

import _multiprocessing
import os
from pathlib import Path

import pytest

from pytest_multihost.core.watch.kernel.futexes import can_be_opened
from pytest_multihost.core.watch.kernel.memory import Memory, MemoryMapping


def mapped(path: Path | str, inode: int = 77) -> MemoryMapping:
    """Return shared memory, as the kernel tells of it."""
    return MemoryMapping(0x1000, 0x2000, "rw-s", "00:1b", inode, str(path))


@pytest.mark.parametrize(
    "path",
    [
        "/SYSV00000000 (deleted)",
        "/SYSV00001234",
        "/run/shm/sem.ready",
        "/run/shm/sem.mp-ready",
        "/run/shm/torch_12_34_5",
        "/dev/nvidia0",
        "anon_inode:[perf_event]",
        "",
    ],
)
def test_memory_that_has_a_name_may_be_opened_by_anybody(path: str) -> None:
    """Also where nobody has it yet, and where it only looks removed."""
    assert can_be_opened(mapped(path), os.getpid())


@pytest.mark.parametrize(
    "path",
    [
        "/memfd:shared (deleted)",
        "/dev/zero (deleted)",
        "/anon_hugepage (deleted)",
        "/nowhere/at/all (deleted)",
        "/run/shm/sem.mp-a8_mn0pq",
        "/run/shm/sem.loky-4711-a8_mn0pq",
    ],
)
def test_memory_whose_name_nobody_has_is_only_for_those_who_have_it(path: str) -> None:
    """It has none, or one that was drawn by lot."""
    assert not can_be_opened(mapped(path), os.getpid())


def test_a_removed_file_may_have_another_name(tmp_path: Path) -> None:
    """Or the name of it ends like one that was removed."""
    one, other = tmp_path / "one", tmp_path / "one (deleted)"
    one.touch()
    removed = mapped(other, one.stat().st_ino)
    one.rename(other)
    assert can_be_opened(removed, os.getpid())
    other.unlink()
    assert not can_be_opened(removed, os.getpid())


@pytest.mark.parametrize(("name", "is_open"), [("multihost-{}", True), ("mp-{:08}", False)])
def test_a_semaphore_can_be_opened_until_its_name_is_removed(*, name: str, is_open: bool) -> None:
    """Its memory is called removed from the beginning; multiprocessing's names are by lot."""

    def files() -> dict[str, MemoryMapping]:
        shared = (each for each in Memory(os.getpid()).mappings("s") if "/sem." in each.path)
        return {each.file: each for each in shared}

    before = files()
    name = "/" + name.format(os.getpid())
    semaphore = _multiprocessing.SemLock(1, 1, 1, name, False)
    try:
        (made,) = (each for file, each in files().items() if file not in before)
        assert can_be_opened(made, os.getpid()) == is_open
    finally:
        _multiprocessing.sem_unlink(name)
    assert not can_be_opened(made, os.getpid())
    del semaphore
