"""A world gets a scratch directory of its own; the files of a passed one serve the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.core.pytest_plugin.scratch_folders import ScratchFolders


@pytest.fixture
def folders(pytestconfig: pytest.Config) -> ScratchFolders:
    """The directories of a run without worlds so far."""
    return ScratchFolders(pytestconfig)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The directory of a world's logs."""
    directory = tmp_path / "logs"
    directory.mkdir()
    return directory


def inode(path: Path) -> int:
    """Return the number by which the file system knows a file."""
    return path.stat().st_ino


def test_the_next_world_gets_the_emptied_files_of_a_passed_one(folders: ScratchFolders) -> None:
    """A page without content is no page, so it finds nothing of the world before."""
    first = folders.take(1)
    slots = first / "rank-0.slots"
    slots.write_bytes(b"operations")
    before = inode(slots)
    folders.give_back(first, is_clean=True)
    second = folders.take(2)
    found = list(second.iterdir())
    assert [(each.name, each.stat().st_size) for each in found] == [("rank-0.slots", 0)]
    assert inode(found[0]) == before
    assert second.name.startswith("world-2-")


def test_worlds_at_the_same_time_get_different_directories(folders: ScratchFolders) -> None:
    """A call in the background is a world beside another."""
    folders.give_back(folders.take(1), is_clean=True)
    assert folders.take(2) != folders.take(2)


def test_files_of_a_world_with_a_process_left_are_not_used_again(folders: ScratchFolders) -> None:
    """The process may still write to them."""
    first = folders.take(1)
    (first / "rank-0.slots").write_bytes(b"operations")
    folders.give_back(first, is_clean=False)
    assert list(folders.take(2).iterdir()) == []
    assert not first.exists()


def test_a_directory_with_a_tests_own_files_stays_where_it_is(folders: ScratchFolders) -> None:
    """Files that a test has written are kept; the next world starts with nothing of it."""
    first = folders.take(1)
    (first / "rank-0.slots").write_bytes(b"operations")
    (first / "shared").mkdir()
    (first / "shared" / "checkpoint").write_text("weights")
    folders.give_back(first, is_clean=True)
    assert [each.name for each in first.iterdir()] == ["shared"]
    assert (first / "shared" / "checkpoint").read_text() == "weights"
    assert list(folders.take(2).iterdir()) == []


def test_other_files_of_the_harness_are_removed(folders: ScratchFolders) -> None:
    """Only the files that each rank opens anew are used again."""
    first = folders.take(1)
    (first / "rank-0.history").write_bytes(b"operations")
    (first / "service-clock").mkdir()
    (first / "service-clock" / "page").write_bytes(b"time")
    folders.give_back(first, is_clean=True)
    assert list(folders.take(2).iterdir()) == []


def test_a_link_is_not_taken_for_a_file_of_a_rank(folders: ScratchFolders, tmp_path: Path) -> None:
    """To empty its target would destroy a user's file."""
    target = tmp_path / "precious"
    target.write_text("weights")
    first = folders.take(1)
    (first / "rank-0.slots").symlink_to(target)
    folders.give_back(first, is_clean=True)
    assert target.read_text() == "weights"
    assert list(folders.take(2).iterdir()) == []


def test_empty_files_for_stacks_move_to_the_next_world(folders: ScratchFolders, logs: Path) -> None:
    """They lie beside the logs, where a reader of a failed test looks for stacks."""
    first = folders.take(1)
    stacks, written = logs / "rank-0.stacks", logs / "rank-1.stacks"
    stacks.touch()
    written.write_text("Thread 0x1")
    before = inode(stacks)
    folders.take_stacks(first, logs)
    folders.give_back(first, is_clean=True)
    assert sorted(each.name for each in logs.iterdir()) == ["rank-1.stacks"]
    folders.lend_stacks(folders.take(2), logs, size=4)
    assert inode(stacks) == before


def test_a_smaller_world_gets_no_files_of_ranks_that_it_does_not_have(
    folders: ScratchFolders, logs: Path
) -> None:
    """Its folder lists the files of its own ranks alone."""
    first = folders.take(1)
    for rank in range(4):
        (logs / f"rank-{rank}.stacks").touch()
    folders.take_stacks(first, logs)
    folders.give_back(first, is_clean=True)
    folders.lend_stacks(folders.take(2), logs, size=2)
    assert sorted(each.name for each in logs.iterdir()) == ["rank-0.stacks", "rank-1.stacks"]


def test_nothing_is_left_at_the_end_of_the_run(folders: ScratchFolders) -> None:
    """The spare directory is removed."""
    first = folders.take(1)
    before = {*first.parent.iterdir()}
    (first / "rank-0.slots").touch()
    folders.give_back(first, is_clean=True)
    folders.give_back(folders.take(2), is_clean=True)
    folders.close()
    assert {*first.parent.iterdir()} == before - {first}


def test_directories_that_a_test_has_removed_are_made_anew(
    folders: ScratchFolders, logs: Path
) -> None:
    """A test may run `git clean`, or remove all temporary files."""
    first = folders.take(1)
    first.rmdir()
    logs.rmdir()
    folders.take_stacks(first, logs)
    folders.give_back(first, is_clean=True)
    assert list(folders.take(2).iterdir()) == []
