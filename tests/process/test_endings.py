"""Nothing is left, whoever is killed and when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

WORLD = """
import os, pathlib, pytest, subprocess, sys, time

@pytest.mark.multihost(ranks=4, timeout=60)
def test_it(world):
    subprocess.Popen(["sleep", "623"], start_new_session=True)
    pathlib.Path("pids").open("a").write(f"{os.getppid()} {os.getpid()}\\n")
    time.sleep(60)

@pytest.mark.multihost(ranks=2)
def test_next(world):
    world.barrier()
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of pytest whose four ranks sleep, each with a grandchild in its own session."""
    (tmp_path / "test_worlds.py").write_text(WORLD)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs", "-x"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        pids = tmp_path / "pids"
        await_that(lambda: pids.exists() and len(pids.read_text().splitlines()) == 4)
        yield run
        run.kill()


def await_that(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait until `condition` holds; generous, because the machine is shared."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def living(path: Path) -> list[str]:
    """Return the command lines of processes that work in `path`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_a_killed_controller_leaves_nothing(started: subprocess.Popen[str], tmp_path: Path) -> None:
    """SIGKILL of pytest: server, ranks and grandchildren in sessions of their own go too."""
    assert len(living(tmp_path)) == 1 + 1 + 4 + 4
    started.kill()
    started.wait()
    await_that(lambda: living(tmp_path) == [])


def test_an_interrupted_run_ends_its_ranks_and_writes_the_verdict(
    started: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Ctrl-C: pytest says so, and nothing is left."""
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate(timeout=60)
    assert started.returncode == pytest.ExitCode.INTERRUPTED, output
    assert (
        "interrupted by Ctrl-C" in (tmp_path / ".pytest_multihost" / "verdicts.jsonl").read_text()
    )
    assert living(tmp_path) == []


def test_a_killed_server_is_an_error_of_its_test_and_is_replaced(tmp_path: Path) -> None:
    """The ranks go with it, and the next test gets a new server."""
    (tmp_path / "test_worlds.py").write_text(
        """
import os, pytest, signal, time

@pytest.mark.multihost(ranks=2, timeout=60)
def test_it(world):
    if world.rank:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

@pytest.mark.multihost(ranks=2)
def test_next(world):
    world.barrier()
"""
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 passed, 1 error" in run.stdout
    assert "the server that starts the ranks is gone" in run.stdout
    await_that(lambda: living(tmp_path) == [])
