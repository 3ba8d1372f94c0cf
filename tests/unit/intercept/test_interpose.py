"""What is observed of Python's access to files, by every way to make a call."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_multihost.intercept.files import (
    FileAccess,
    FileObserver,
    matcher,
    observing_files,
    reported,
)
from pytest_multihost.testing import IO_CALLS

Seen = list[tuple[str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a file and a folder."""
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "a").write_text("text")
    return tmp_path / "folder"


@pytest.fixture
def seen(folder: Path) -> Iterator[Seen]:
    """Observe all that happens in the folder; nothing is left replaced."""
    found: Seen = []

    def note(access: FileAccess) -> None:
        found.append((access.call, Path(access.path).name))

    before = [vars(os)[name] for name in ("stat", "open", "scandir", "rename")]
    with observing_files(FileObserver(matcher(f"{folder}*"), note, calls=IO_CALLS)):
        yield found
    assert [vars(os)[name] for name in ("stat", "open", "scandir", "rename")] == before


def synced(file: Path) -> None:
    """Write a file to the disk."""
    with file.open("a") as stream:
        os.fsync(stream)


WAYS = [
    *("exists", "isdir", "access", "iterdir", "glob", "rglob", "glob.glob", "walk", "makedirs"),
    *("rmtree-folder", "rmtree-file", "move", "replace-old", "symlink", "link-by-name", "fsync"),
    "reported",
]


@pytest.mark.parametrize(
    ("action", "call", "name"),
    [
        (lambda at: (at / "a").exists(), "stat", "a"),
        (os.path.isdir, "stat", "folder"),
        (lambda at: os.access(at / "a", os.R_OK), "stat", "a"),
        (lambda at: [*at.iterdir()], "listdir", "folder"),
        (lambda at: [*at.glob("*")], "listdir", "folder"),
        (lambda at: [*at.rglob("*")], "listdir", "inner"),
        (lambda at: glob.glob(f"{at}/*"), "listdir", "folder"),  # noqa: PTH207
        (lambda at: [*os.walk(at)], "listdir", "inner"),
        (lambda at: os.makedirs(at / "b" / "c"), "mkdir", "c"),  # noqa: PTH103
        (shutil.rmtree, "rmdir", "inner"),
        (shutil.rmtree, "unlink", "a"),
        (lambda at: shutil.move(at / "a", at / "b"), "rename", "b"),
        (lambda at: (at / "a").replace(at.parent / "b"), "rename", "a"),
        (lambda at: (at / "b").symlink_to("a"), "link", "b"),
        (lambda at: os.link(src=at / "a", dst=at / "b"), "link", "b"),
        (lambda at: synced(at / "a"), "fsync", "a"),
        (lambda at: reported("write", f"{at}/model.pt"), "write", "model.pt"),
    ],
    ids=WAYS,
)
def test_a_call_is_observed_however_it_is_made(
    folder: Path, seen: Seen, action: Callable[[Path], object], call: str, name: str
) -> None:
    """By `os`, `pathlib`, `shutil` and `glob`."""
    action(folder)
    assert (call, name) in seen


def test_a_folder_is_listed_as_observers_show_it(folder: Path) -> None:
    """In their order, and without what they hide; the entries are the real ones."""
    observer = FileObserver(
        matcher(str(folder)),
        before=lambda _: None,
        calls=frozenset({"listdir"}),
        listed=lambda _, names: sorted(names, reverse=True)[:1],
    )
    with observing_files(observer):
        assert os.listdir(folder) == ["inner"]
        assert os.listdir(os.fsencode(folder)) == [b"inner"]
        with os.scandir(folder) as entries:
            assert [(each.name, each.is_dir()) for each in entries] == [("inner", True)]
    assert sorted(each.name for each in folder.iterdir()) == ["a", "inner"]


def test_a_repeated_call_asks_an_observer_once_for_its_path(folder: Path) -> None:
    """Matching takes longer than the call itself; `exists` and `open` ask for their own calls."""
    asked: list[str] = []

    def matches(path: str) -> bool:
        asked.append(path)
        return True

    with observing_files(FileObserver(matches, lambda _: None, calls=IO_CALLS)):
        for _ in range(10):
            (folder / "a").exists()
            (folder / "a").read_text()
    assert set(asked) == {f"{folder}/a"}
    assert len(asked) == len(("stat", "any call on data", "open", "read"))


def test_an_observer_hears_of_a_path_that_was_used_before_it_came(folder: Path, seen: Seen) -> None:
    """And hears nothing after it has gone, although the path is used again."""
    later: list[str] = []
    (folder / "a").read_text()
    observer = FileObserver(matcher(f"{folder}*"), lambda access: later.append(access.call))
    with observing_files(observer):
        (folder / "a").read_text()
    (folder / "a").read_text()
    assert later == ["open", "read"]
    assert seen == [("open", "a"), ("read", "a")] * 3
