"""The live line: on a terminal, for worlds that take longer than a second, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import LAPTOP

SLOW = """
import pytest, time

@pytest.mark.multihost(ranks=3)
def test_it(world):
    if world.is_primary:
        time.sleep(4)
"""


def run_on_terminal(directory: Path, **environment: str) -> str:
    """Run pytest with a pseudo terminal as its output and return what it wrote."""
    (directory / "test_worlds.py").write_text(SLOW)
    (directory / "pytest.ini").write_text("[pytest]\n")
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs"],
        cwd=directory,
        env={**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 4096):
            chunks.append(chunk)
    except OSError:  # Linux says EIO when the last writer has closed a pty
        pass
    finally:
        os.close(ours)
    assert run.wait(timeout=60) == 0
    return b"".join(chunks).decode()


def test_a_slow_world_shows_where_its_ranks_are(tmp_path: Path) -> None:
    """The text ends left of where it began, so that pytest's own output overwrites it."""
    output = run_on_terminal(tmp_path)
    text = " s: waiting for rank 0: sleep"
    assert text in output
    shown = next(part for part in output.split("\x1b[K") if text in part)
    shown = shown[shown.rindex("test_worlds.py") + len("test_worlds.py") :].lstrip("\x1b[0m ")
    back = output.split(text, 1)[1].split("\x1b[K\x1b[", 1)[1].split("D", 1)[0]
    assert int(back) == len(f" {shown}")
    assert "rank 0: sleep at test_worlds.py:7 for " in output


def test_a_ci_log_shows_none(tmp_path: Path) -> None:
    """Some CI systems pretend to be a terminal; every update would be a line there."""
    assert "ranks 1,2 done" not in run_on_terminal(tmp_path, CI="true")


def test_a_pipe_shows_none(run_worlds) -> None:
    """Who reads the output by program gets pytest's own and nothing between."""
    worlds = run_worlds(SLOW)
    assert "ranks 1,2 done" not in worlds.stdout


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_multihost_tests_are_skipped_saying_so(
    run_worlds, pytester: pytest.Pytester, system: str
) -> None:
    """Never a wrong verdict: proof needs /proc."""
    pytester.makeconftest(
        f"""
        from pytest_multihost.core.pytest_plugin import run
        run.PLATFORM = {system!r}
        """
    )
    worlds = run_worlds(SLOW, "-rs")
    worlds.run.assert_outcomes(skipped=1)
    assert f"multihost tests need Linux (/proc, pidfds), and this is {system}" in worlds.stdout


def test_elsewhere_no_module_needs_what_only_linux_has(tmp_path: Path) -> None:
    """Signals, system calls and constants that Python lacks there are missing in this run."""
    (tmp_path / "laptop.py").write_text(LAPTOP)
    (tmp_path / "test_it.py").write_text(SLOW)
    command = [sys.executable, "laptop.py", "-rs", "-p", "multihost_hangs", "test_it.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "multihost tests need Linux (/proc, pidfds), and this is darwin" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
