"""Files are written whole, and only where nothing of others is replaced or followed."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

from pytest_multihost.core import files
from pytest_multihost.core.report import RunFolder, new_run_id, write_attempt
from pytest_multihost.testing import SettingError, make_event

NOT_ROOT = os.geteuid() != 0


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let this process write no larger files, as on a disk that is full."""
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)


def test_a_new_directory_is_claimed(tmp_path: Path) -> None:
    """With the directories above it, and as often as there are runs."""
    base = tmp_path / "new" / "artifacts"
    for _ in range(2):
        files.claim(base)
    assert {path.name for path in base.iterdir()} == {files.MARKER, ".gitignore"}


def test_a_directory_of_a_version_without_marker_is_claimed(tmp_path: Path) -> None:
    """Its .gitignore, which no user writes so, shows whose it is."""
    files.claim(tmp_path)
    (tmp_path / files.MARKER).unlink()
    (tmp_path / "2026-01-01T00-00-00Z-1").mkdir()
    files.claim(tmp_path)
    assert (tmp_path / files.MARKER).is_file()


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    """The message names one of them."""
    (tmp_path / ".gitignore").write_text("mine\n")
    with pytest.raises(SettingError, match=r"holds other files, such as \.gitignore"):
        files.claim(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        (".gitignore", "mine\n")
    ]


@pytest.mark.skipif(NOT_ROOT, reason="only root may give a directory to another user")
@pytest.mark.parametrize(("mode", "is_refused"), [(0o1777, True), (0o755, False)])
def test_where_all_users_may_write_the_directory_must_be_the_own(
    tmp_path: Path, mode: int, *, is_refused: bool
) -> None:
    """Elsewhere it may be, say, that of the user whose project a container has mounted."""
    base = tmp_path / "artifacts"
    files.claim(base)
    tmp_path.chmod(mode)
    os.chown(base, 4711, 4711)
    if is_refused:
        with pytest.raises(SettingError, match="belongs to the user with the id 4711"):
            files.claim(base)
    else:
        files.claim(base)


def write_verdict(directory: Path) -> None:
    """Write two files of an attempt."""
    write_attempt(directory, {"status": "failed"}, [make_event(1.0, 0, "ready")], origin_s=0.0)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("verdict.json", write_verdict),
        ("history.jsonl", write_verdict),
        ("report.html", lambda directory: files.write(directory / "report.html", "new")),
    ],
)
def test_a_link_in_a_files_place_is_replaced_and_not_followed(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    """Others may have put it there in a directory that is shared."""
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    directory = tmp_path / "attempt"
    directory.mkdir()
    (directory / name).symlink_to(victim)
    write(directory)
    assert victim.read_text() == "theirs"
    assert (directory / name).is_file()
    assert not (directory / name).is_symlink()


def test_a_link_is_not_appended_to(tmp_path: Path) -> None:
    """Nor is its target made."""
    (tmp_path / "verdicts.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        files.append(tmp_path / "verdicts.jsonl", "line\n")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("name", ["latest", "verdicts.jsonl", ".gitignore"])
def test_what_users_put_into_the_directory_stays(tmp_path: Path, name: str) -> None:
    """Also where it has the name of something that every run makes."""
    files.claim(tmp_path)
    (tmp_path / ".gitignore").unlink()
    (tmp_path / name).write_text("mine\n")
    if name == ".gitignore":
        RunFolder.open(tmp_path, new_run_id())
    else:
        with pytest.raises(FileExistsError, match="left as it is"):
            RunFolder.open(tmp_path, new_run_id())
    assert (tmp_path / name).read_text() == "mine\n"


def test_a_planted_gitignore_is_not_followed(tmp_path: Path) -> None:
    """Not even where what it leads to does not exist."""
    files.claim(tmp_path)
    (tmp_path / ".gitignore").unlink()
    (tmp_path / ".gitignore").symlink_to(tmp_path / "victim")
    RunFolder.open(tmp_path, new_run_id())
    assert not (tmp_path / "victim").exists()


def test_a_file_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """Neither an empty one nor a draft; and what was there before stays."""
    (tmp_path / "facts.json").write_text("old")
    with files_of_at_most(1000):
        for name in ("verdict.json", "facts.json"):
            with pytest.raises(OSError, match="File too large"):
                files.write(tmp_path / name, "x" * 2000)
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]
    assert (tmp_path / "facts.json").read_text() == "old"


@pytest.mark.parametrize("already", [0, 500, 900, 1000])
def test_a_line_that_does_not_fit_is_not_begun(tmp_path: Path, already: int) -> None:
    """Lines that others append later would be joined to its beginning."""
    path = tmp_path / "verdicts.jsonl"
    path.write_bytes(b"x" * already)
    with files_of_at_most(1000), pytest.raises(OSError, match=r"too large|No space"):
        files.append(path, "y" * 2000)
    assert path.read_bytes() == b"x" * already


def _run_of_its_own(base: Path, ready: Barrier, number: int) -> None:
    ready.wait(100)
    folder = RunFolder.open(base, new_run_id())
    for attempt in range(20):
        directory = folder.attempt("t.py::t", attempt)
        write_attempt(directory, {"run": number}, [], origin_s=0.0)
        folder.append_verdict({"run": number, "dir": str(directory)})
    ready.wait(100)


def test_runs_in_one_directory_keep_their_hands_off_each_other(tmp_path: Path) -> None:
    """Eight that start and end at once, although only the last three would be kept later."""
    fork = multiprocessing.get_context("fork")
    ready = fork.Barrier(8)
    runs = [fork.Process(target=_run_of_its_own, args=(tmp_path, ready, n)) for n in range(8)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(120)
    assert [run.exitcode for run in runs] == [0] * 8
    folders = [path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()]
    assert len(folders) == 8
    for folder in folders:
        lines = (folder / "verdicts.jsonl").read_text().splitlines()
        verdicts = [json.loads(line) for line in lines]
        assert len(verdicts) == 20
        for each in verdicts:
            assert json.loads(Path(str(each["dir"]), "verdict.json").read_text()) == {
                "run": each["run"]
            }


def test_a_directory_is_held_until_its_process_has_ended(tmp_path: Path) -> None:
    """However it ends: the kernel gives the lock back."""
    held = tmp_path / "held"
    program = f"""
import pathlib, sys, pytest_multihost.core.files as files
files.hold(pathlib.Path({str(held)!r}))
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        files.remove_unheld(held)
        assert held.is_dir()
        holder.kill()
        holder.wait()
    files.remove_unheld(held)
    assert not held.exists()


def _hold_and_write(directory: Path, is_over: Event, number: int) -> None:
    files.hold(directory)
    mine = directory / str(number)
    mine.write_text("mine")
    is_over.wait(100)
    os._exit(0 if mine.exists() else 1)


def test_what_is_written_to_a_held_directory_stays_while_others_try_to_remove_it(
    tmp_path: Path,
) -> None:
    """Also where they do so while it is being made."""
    fork = multiprocessing.get_context("fork")
    for turn in range(20):
        directory, is_over = tmp_path / str(turn), fork.Event()
        holders = [
            fork.Process(target=_hold_and_write, args=(directory, is_over, n)) for n in range(4)
        ]
        for holder in holders:
            holder.start()
        while len([*directory.glob("[0-9]")]) < 4 and all(each.is_alive() for each in holders):
            files.remove_unheld(directory)
        is_over.set()
        for holder in holders:
            holder.join(100)
        assert [holder.exitcode for holder in holders] == [0] * 4


@pytest.mark.parametrize("write", [files.write, files.write_named])
@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_file_that_a_user_names_is_not_written_through_a_link(
    tmp_path: Path, write: Callable[[Path, str], None], *, is_dangling: bool
) -> None:
    """As root in a folder of another user, this would overwrite any file."""
    victim, named = tmp_path / "victim", tmp_path / "out.json"
    if not is_dangling:
        victim.write_text("precious")
    named.symlink_to(victim)
    write(named, "verdict")
    assert named.read_text() == "verdict"
    assert not named.is_symlink()
    assert victim.exists() is not is_dangling
    assert is_dangling or victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """As root, /dev/stdout would be a file afterwards."""
    named = tmp_path / "out.json"
    if kind == "fifo":
        os.mkfifo(named)
    elif kind == "directory":
        named.mkdir()
    else:
        named.symlink_to("/dev/null")
    with pytest.raises(OSError, match="not a regular file"):
        files.write_named(named, "verdict")
    assert sorted(tmp_path.iterdir()) == [named]


@pytest.mark.parametrize("open_it", [files.open_log, files.appending])
def test_a_log_is_not_appended_to_through_a_link(
    tmp_path: Path, open_it: Callable[[Path], object]
) -> None:
    """Nor is one made where the link leads."""
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        open_it(tmp_path / "log")
    assert not (tmp_path / "victim").exists()


def test_a_text_is_put_only_into_a_file_that_is_there(tmp_path: Path) -> None:
    """And stays that file, because others have it open; a link is refused."""
    with pytest.raises(FileNotFoundError):
        files.put(tmp_path / "hosts", "a")
    (tmp_path / "hosts").write_text("long text")
    number = (tmp_path / "hosts").stat().st_ino
    files.put(tmp_path / "hosts", "short")
    assert (tmp_path / "hosts").read_text() == "short"
    assert (tmp_path / "hosts").stat().st_ino == number
    (tmp_path / "link").symlink_to(tmp_path / "hosts")
    with pytest.raises(OSError, match="symbolic link"):
        files.put(tmp_path / "link", "other")
