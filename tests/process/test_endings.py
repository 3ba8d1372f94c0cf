"""Nothing is left, whoever is killed and when."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import await_that, living, start_pytest

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
    with start_pytest(tmp_path, WORLD, "-x") as run:
        pids = tmp_path / "pids"
        await_that(lambda: pids.exists() and len(pids.read_text().splitlines()) == 4)
        yield run
        run.kill()


def test_a_killed_controller_leaves_nothing(started: subprocess.Popen[str], tmp_path: Path) -> None:
    """SIGKILL of pytest: server, ranks and grandchildren in sessions of their own go too."""
    assert len(living(tmp_path)) == 1 + 1 + 4 + 4
    started.kill()
    started.wait()
    await_that(lambda: living(tmp_path) == [])


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")],
)
def test_an_interrupted_run_ends_its_ranks_and_writes_the_verdict(
    started: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, name: str
) -> None:
    """By Ctrl-C, a time limit or a closed terminal: pytest says so, and nothing is left."""
    started.send_signal(number)
    output, _ = started.communicate(timeout=60)
    assert started.returncode == pytest.ExitCode.INTERRUPTED, output
    assert f"KeyboardInterrupt: interrupted by {name}" in output
    assert "test_it: where the ranks were:" in output
    assert re.search(r"^files \.pytest_multihost/\S+/report\.html$", output, re.MULTILINE)
    written = (tmp_path / ".pytest_multihost" / "verdicts.jsonl").read_text()
    assert f"interrupted by {name}" in written
    assert living(tmp_path) == []


def test_a_second_signal_ends_a_run_without_waiting_for_stacks(
    started: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Nor for a rank's own handler of SIGTERM; and nothing is left."""
    for _ in range(3):
        started.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    output, _ = started.communicate(timeout=60)
    assert started.returncode == pytest.ExitCode.INTERRUPTED, output
    await_that(lambda: living(tmp_path) == [])


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.02])
def test_signals_without_end_do_not_strike_while_a_run_ends(
    started: subprocess.Popen[str], tmp_path: Path, pause_s: float
) -> None:
    """The verdict is written and pytest's summary is printed, whenever another signal comes."""
    deadline = time.monotonic() + 60
    while started.poll() is None and time.monotonic() < deadline:
        started.send_signal(signal.SIGTERM)
        time.sleep(pause_s)
    output, _ = started.communicate(timeout=60)
    assert started.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "Traceback" not in output
    assert "interrupted by SIGTERM" in (tmp_path / ".pytest_multihost/verdicts.jsonl").read_text()
    await_that(lambda: living(tmp_path) == [])


ORDINARY = """
import multiprocessing, os, signal, time
import pytest

def test_child():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.2)
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM

@pytest.mark.multihost
def test_rank(world):
    for number in (signal.SIGTERM, signal.SIGHUP):
        assert signal.getsignal(number) is signal.SIG_DFL

def test_signalled():
    os.kill(os.getpid(), signal.SIGTERM)

def test_later():
    pass
"""


def test_between_worlds_a_signal_ends_the_run_and_in_children_it_means_what_it_did(
    tmp_path: Path,
) -> None:
    """A child that an ordinary test has forked dies of SIGTERM, and so does a rank."""
    with start_pytest(tmp_path, ORDINARY) as run:
        output, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "KeyboardInterrupt: SIGTERM" in output
    assert "2 passed" in output


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


STOPS_SERVER = """
import os, pathlib, pytest, signal, time

@pytest.mark.multihost(ranks=2, timeout=60)
def test_it(world):
    if world.rank == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
        pathlib.Path("stopped").touch()
    time.sleep(60)
"""


def test_a_stopped_server_does_not_outlive_a_killed_controller(tmp_path: Path) -> None:
    """A rank has stopped it, so it sees nothing end until the kernel continues it."""
    with start_pytest(tmp_path, STOPS_SERVER) as run:
        await_that((tmp_path / "stopped").exists)
        run.kill()
        run.wait()
        try:
            await_that(lambda: living(tmp_path) == [])
        finally:
            for each in living(tmp_path):
                each.kill()
