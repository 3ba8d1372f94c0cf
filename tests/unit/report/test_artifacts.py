"""The artifacts directory: names, links, and what is thrown away."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from pytest_multihost.core.artifacts_access import ACCESS
from pytest_multihost.core.files import claim, open_log
from pytest_multihost.core.report.artifacts import (
    RunFolder,
    attempt_name,
    new_run_id,
    write_attempt,
)
from pytest_multihost.testing import make_event

NOBODY = 2**22 + 1
"""More than the kernel's largest process id, so surely not running."""


def open_run(base: Path) -> RunFolder:
    """Open the folder of a run that starts now."""
    return RunFolder.open(base, new_run_id())


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("test_it.py::test_it", "test_it.py-test_it"),
        (
            "tests/unit/test_it.py::TestIt::test_it[4-gloo]",
            "tests-unit-test_it.py-TestIt-test_it-4-gloo",
        ),
        ("test_it.py::test_it[a/../../b\x00\n*?]", "test_it.py-test_it-a-..-..-b"),
        ("test_ü.py::test_☃", "test_-.py-test_"),
    ],
)
def test_a_folder_is_named_after_its_test(nodeid: str, name: str) -> None:
    """Readable, in letters that every file system and every shell takes."""
    found = attempt_name(nodeid, 2)
    assert re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{4,8}}-2", found)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", found)


def test_the_longest_name_fits() -> None:
    """File systems take 255 bytes."""
    assert len(attempt_name("test_it.py::test_it[" + "x" * 5000 + "]", 1000)) < 200


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("t.py::t[a/b]", 1), ("t.py::t[a-b]", 1)),
        (("t.py::t[" + "x" * 500 + "1]", 1), ("t.py::t[" + "x" * 500 + "2]", 1)),
        (("t.py::t", 1), ("t.py::t", 2)),
    ],
    ids=["letters", "length", "attempt"],
)
def test_names_are_told_apart(one: tuple[str, int], other: tuple[str, int]) -> None:
    """Also where what differs does not show in the readable part."""
    assert attempt_name(*one) != attempt_name(*other)


def test_names_of_a_large_parametrized_test_are_told_apart() -> None:
    """Several attempts in one folder would overwrite each other's verdicts."""
    nodeids = [f"t.py::t[{'x' * 150}-{i * 7919}-{i * i}]" for i in range(2000)]
    assert len({attempt_name(nodeid, 1) for nodeid in nodeids}) == len(nodeids)


def test_a_run_has_a_folder_that_latest_points_to(tmp_path: Path) -> None:
    """By relative links, so that the directory can be copied from a CI machine."""
    folder = open_run(tmp_path / "new" / "artifacts")
    assert folder.path.is_dir()
    assert (folder.base / "latest").readlink() == Path(folder.run_id)
    assert (folder.base / "verdicts.jsonl").readlink() == Path("latest/verdicts.jsonl")
    assert (folder.base / "verdicts.jsonl").read_bytes() == b""
    assert f"-{os.getpid()}-" in folder.run_id


def test_the_processes_of_one_run_share_its_folder(tmp_path: Path) -> None:
    """A worker of xdist that comes late takes nothing from what the others have written."""
    run_id = new_run_id()
    RunFolder.open(tmp_path, run_id).append_verdict({"worker": "gw0"})
    RunFolder.open(tmp_path, run_id).append_verdict({"worker": "gw1"})
    lines = (tmp_path / "verdicts.jsonl").read_text().splitlines()
    assert [json.loads(line)["worker"] for line in lines] == ["gw0", "gw1"]


def test_git_ignores_the_directory(tmp_path: Path) -> None:
    """All of it, the file that says so included."""
    open_run(tmp_path)
    assert "\n*\n" in (tmp_path / ".gitignore").read_text()


def test_links_follow_the_newest_run(tmp_path: Path) -> None:
    """Also where the run that they pointed to has been removed."""
    open_run(tmp_path).append_verdict({})
    shutil.rmtree(tmp_path / (tmp_path / "latest").readlink())
    folder = open_run(tmp_path)
    assert (tmp_path / "latest").resolve() == folder.path.resolve()
    assert (tmp_path / "verdicts.jsonl").read_bytes() == b""


def test_two_runs_that_start_at_once_have_two_folders() -> None:
    """In two containers that share a directory even their process ids may be the same."""
    assert new_run_id() != new_run_id()


def test_attempts_of_one_test_in_two_processes_have_two_folders(tmp_path: Path) -> None:
    """With `--dist each`, every worker of a run has the same tests."""
    folder = open_run(tmp_path)
    assert folder.attempt("t.py::t", 1) != folder.attempt("t.py::t", 1)


def test_three_runs_are_kept(tmp_path: Path) -> None:
    """The new one and the two before it."""
    claim(tmp_path)
    old = [tmp_path / f"2026-01-0{day}T00-00-00Z-{NOBODY}" for day in range(1, 6)]
    for path in old:
        (path / "attempt").mkdir(parents=True)
    folder = open_run(tmp_path)
    kept = {path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()}
    assert kept == {*old[3:], folder.path}


def test_a_run_that_is_under_way_is_never_dropped(tmp_path: Path) -> None:
    """Another pytest may write there, however long it has been running."""
    claim(tmp_path)
    running = RunFolder.open(tmp_path, f"2020-01-01T00-00-00Z-{NOBODY}-9f3a").path
    for day in range(1, 6):
        (tmp_path / f"2026-01-0{day}T00-00-00Z-{NOBODY}").mkdir()
    open_run(tmp_path)
    assert running.is_dir()


def test_what_is_not_ours_is_never_dropped(tmp_path: Path) -> None:
    """Users may keep other things beside the runs."""
    claim(tmp_path)
    theirs = [tmp_path / "2020-results", tmp_path / "data", tmp_path / "2020-01-01T00-00-00Z"]
    for path in theirs:
        path.mkdir()
    for day in range(1, 6):
        (tmp_path / f"2026-01-0{day}T00-00-00Z-{NOBODY}").mkdir()
    open_run(tmp_path)
    assert all(path.is_dir() for path in theirs)


def test_a_verdict_is_one_line(tmp_path: Path) -> None:
    """Whatever is in it, so that lines of several processes can be told apart."""
    folder = open_run(tmp_path)
    verdicts = [{"reason": "two\nlines"}, {"reason": "ü ☃ \u2028"}]
    for verdict in verdicts:
        folder.append_verdict(verdict)
    data = (folder.path / "verdicts.jsonl").read_bytes()
    assert data.count(b"\n") == len(data.splitlines()) == 2
    assert [json.loads(line) for line in data.splitlines()] == verdicts


def test_a_verdict_without_a_number_is_refused(tmp_path: Path) -> None:
    """NaN is not JSON, and other tools would choke on it."""
    with pytest.raises(ValueError, match="JSON"):
        open_run(tmp_path).append_verdict({"duration_s": float("nan")})


def test_an_attempt_is_written_to_its_own_folder(tmp_path: Path) -> None:
    """The verdict, and the history with times since the start."""
    directory = open_run(tmp_path).attempt("t.py::t", 1)
    write_attempt(directory, {"status": "failed"}, [make_event(7.5, 0, "ready")], origin_s=7.0)
    assert json.loads((directory / "verdict.json").read_text()) == {"status": "failed"}
    [line] = (directory / "history.jsonl").read_text().splitlines()
    assert json.loads(line) == {"at_s": 0.5, "rank": 0, "kind": "ready", "detail": {}}


def test_a_stack_file_that_nobody_filled_is_removed(tmp_path: Path) -> None:
    """Every rank opens one, and most never need it."""
    (tmp_path / "rank-0.stacks").write_text("")
    (tmp_path / "rank-1.stacks").write_text("Thread 0x1 (most recent call first):\n")
    (tmp_path / "rank-1.keys").write_text('"run_id"\n')
    write_attempt(tmp_path, {}, [], origin_s=0.0)
    assert [path.name for path in tmp_path.glob("rank-*")] == ["rank-1.stacks"]


@pytest.mark.parametrize(
    ("access", "folder", "file"),
    [("me", 0o700, 0o600), ("group", 0o750, 0o640), ("all", 0o755, 0o644)],
)
def test_artifacts_are_as_open_as_the_user_says(
    tmp_path: Path, access: str, folder: int, file: int
) -> None:
    """The folders of the run and of an attempt, and every file in them; nobody else by default."""
    old = os.umask(0o022)
    try:
        run = RunFolder.open(tmp_path / "artifacts", new_run_id(), ACCESS[access])
        attempt = run.attempt("test_a.py::test_a", 1)
        run.append_verdict({"a": 1})
        write_attempt(attempt, {"a": 1}, [], origin_s=0.0)
        os.close(open_log(attempt / "rank-0.log"))
    finally:
        os.umask(old)
    for each in (run.base, run.path, attempt):
        assert each.stat().st_mode & 0o777 == folder
    files = [run.path / "verdicts.jsonl", *attempt.iterdir()]
    assert [each.stat().st_mode & 0o777 for each in files] == [file] * 4


def test_a_directory_that_is_shared_already_is_not_closed(tmp_path: Path) -> None:
    """Others may keep their runs there; ours is private in it all the same."""
    base = tmp_path / "shared"
    base.mkdir()
    base.chmod(0o755)
    run = open_run(base)
    assert base.stat().st_mode & 0o777 == 0o755
    assert run.path.stat().st_mode & 0o777 == 0o700


def test_artifacts_of_before_are_opened_by_the_option(tmp_path: Path) -> None:
    """`--multihost-artifacts-access=all`: a later run opens the directory that an earlier made."""
    assert open_run(tmp_path / "artifacts").base.stat().st_mode & 0o777 == 0o700
    RunFolder.open(tmp_path / "artifacts", new_run_id(), ACCESS["all"])
    assert (tmp_path / "artifacts").stat().st_mode & 0o777 == 0o755


def test_a_log_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    """Somebody may have put it there."""
    (tmp_path / "rank-0.log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        open_log(tmp_path / "rank-0.log")
    assert not (tmp_path / "victim").exists()
