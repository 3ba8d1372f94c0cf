"""report.html is written where something went wrong, and can be written again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORLDS = """
import pytest, time

@pytest.mark.multihost(ranks=3, timeout=30)
def test_hangs(world):
    print("\\x1b[31m</pre><script>rank", world.rank)
    if world.rank == 1:
        time.sleep(600)
    world.barrier("commit")

@pytest.mark.multihost(ranks=2)
def test_passes(world):
    pass
"""


def command(*args: object, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the console script's module."""
    line = [sys.executable, "-m", "pytest_multihost.core.command.main", *map(str, args)]
    environment = {**os.environ, **changes}
    return subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=60, env=environment
    )


@pytest.mark.claim("read the report of a hang")
def test_a_hang_has_a_page_that_can_be_written_again(run_worlds, tmp_path: Path) -> None:
    """The terminal names it, the run's page links to it, and artifacts alone make the same one."""
    worlds = run_worlds(WORLDS)
    page, index = worlds.directory("test_hangs") / "report.html", _index(worlds)
    written = page.read_text()
    assert "time.sleep(600)" in written
    assert re.search(r"files +\S+test_hangs\S+/report.html", worlds.stdout)
    assert not (worlds.directory("test_passes") / "report.html").exists()
    assert re.findall(r'href="(\S+)/report.html"', index.read_text()) == [page.parent.name]
    assert "1 hung, 1 passed" in index.read_text()

    for path in (page, index):
        path.unlink()
    again = command("report", worlds.path / ".pytest_multihost")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines() == [str(page), str(index.resolve())]
    assert _without_command(page.read_text()) == _without_command(written)
    assert 'data-copies="command"' in written
    assert 'data-copies="command"' not in page.read_text(), "the file may be from another person"

    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    opened = command("open", worlds.path / ".pytest_multihost", BROWSER=f"{browser} %s")
    assert opened.returncode == 0
    assert (tmp_path / "opened").read_text().strip() == page.resolve().as_uri()
    said = command("open", "--path", PYTEST_MULTIHOST_ARTIFACTS=f"{worlds.path}/.pytest_multihost")
    assert Path(said.stdout.strip()).resolve() == page.resolve()


def _without_command(page: str) -> str:
    """Return a page without the section that repeats the run."""
    return re.sub(r'<h2 id="replay">.*?</section>', "", page, flags=re.DOTALL)


def _index(worlds: Any) -> Path:  # noqa: ANN401 - the conftest's Worlds
    index: Path = worlds.path / ".pytest_multihost" / "latest" / "report.html"
    return index


def test_a_page_that_cannot_be_written_hides_nothing(run_worlds) -> None:
    """The test fails as it would have, its verdict is written, and the terminal says what is not.

    A folder stands where the page should go.
    """
    worlds = run_worlds(
        """
        import pathlib, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            [mine] = pathlib.Path(".pytest_multihost").glob("2*/*test_it*")
            (mine / "report.html").mkdir(exist_ok=True)
            assert world.rank
        """
    )
    worlds.run.assert_outcomes(failed=1)
    assert worlds.verdicts["test_it"]["outcome"] == "failed"
    assert "report.html: IsADirectoryError" in worlds.stdout
    assert "-1/report.html\n" not in worlds.stdout
    assert not list(worlds.directory("test_it").glob(".*"))


def test_a_page_that_does_not_fit_is_said_and_the_old_one_stays(run_worlds) -> None:
    """`multihost report` on a full disk ends with what happened and why, not with a traceback."""
    worlds = run_worlds(WORLDS)
    before = _index(worlds).read_text()
    program = "from pytest_multihost.core.command.main import main; raise SystemExit(main())"
    command = f"ulimit -f 1; exec {sys.executable} -c '{program}' report .pytest_multihost/latest"
    ended = subprocess.run(
        ["sh", "-c", command], cwd=worlds.path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    # Two lines each, for the page of the test that hung and for the page of the run.
    reasons = ended.stderr.splitlines()
    assert [line.partition(":")[0] for line in reasons[::2]] == ["left out", "left out"]
    assert all(each.startswith("[Errno 27] File too large: '") for each in reasons[1::2])
    assert all(".html" in each for each in reasons[1::2])
    assert _index(worlds).read_text() == before


@pytest.mark.program(WORLDS, "-p", "xdist", "-n", "2")
def test_the_processes_of_xdist_have_one_page_for_the_run(worlds) -> None:
    """Written when the last of them has ended."""
    assert "1 hung, 1 passed" in _index(worlds).read_text()


def test_a_run_that_passed_gets_its_page_when_it_is_opened(run_worlds) -> None:
    """A page takes longer to make than many a run takes to pass."""
    worlds = run_worlds(WORLDS, "-k", "test_passes")
    assert not _index(worlds).exists()
    said = command("open", "--path", worlds.path / ".pytest_multihost")
    assert said.stdout.strip() == str(_index(worlds))
    assert "1 passed" in _index(worlds).read_text()


def test_a_run_that_was_killed_gets_its_page_when_it_is_opened(tmp_path: Path) -> None:
    """Only verdicts.jsonl is there."""
    run = tmp_path / "2026-11-21T00-00-00Z-1"
    run.mkdir()
    (run / "verdicts.jsonl").touch()
    (tmp_path / "latest").symlink_to(run.name)
    said = command("open", "--path", tmp_path)
    assert said.stdout.strip() == f"{tmp_path}/latest/report.html"
    assert "No test ran" in (run / "report.html").read_text()


@pytest.mark.parametrize("name", ["open", "report"])
def test_a_folder_without_a_report_is_told(name: str, tmp_path: Path) -> None:
    """What was looked for, and what to name instead."""
    said = command(name, tmp_path)
    assert said.returncode == 1
    assert str(tmp_path) in said.stderr
    assert "Name the artifacts directory" in said.stderr


def test_facts_of_another_version_are_left_out_and_the_rest_is_written(tmp_path: Path) -> None:
    """The run's page is made all the same."""
    attempt = tmp_path / "run" / "attempt"
    attempt.mkdir(parents=True)
    (tmp_path / "run" / "verdicts.jsonl").touch()
    for name in ("facts.json", "verdict.json"):
        (attempt / name).write_text(json.dumps({"root": "/", "symptoms": {}, "result": {}}))
    said = command("report", tmp_path)
    assert said.returncode == 1
    assert "left out" in said.stderr
    assert "report.html" in said.stdout
