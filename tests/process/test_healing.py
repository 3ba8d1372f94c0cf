"""Whoever ends in the middle of its faults: the machine and the next test are as before."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from runs import await_that, living, server_of, start_pytest

WORLDS = """
import pathlib, pytest, resource, subprocess
from pytest_multihost import at, faults

X = at.sync_point("x")
FAULTS = [
    faults.slow_io(rank=0, seconds=600, path="*/ckpt", at=X),
    faults.freeze(rank=1, at=X),
    faults.cpu_throttle(rank=2, percent=10, at=X),
    faults.memory_pressure(rank=3, headroom_mb=64, at=X),
    faults.fd_pressure(rank=3, at=X),
    faults.delay(rank=3, seconds=600, at=X),
]

def limits():
    return [resource.getrlimit(each) for each in (resource.RLIMIT_DATA, resource.RLIMIT_NOFILE)]

BEFORE = limits()

@pytest.mark.multihost(ranks=4, timeout=60, faults=FAULTS)
def test_1(world, tmp_path):
    subprocess.Popen(["sleep", "600"])
    world.barrier("all")
    world.sync_point("x")
    if world.rank == 0:
        (tmp_path / "ckpt").write_text("never")
    while True:
        sum(range(1000))

@pytest.mark.multihost(ranks=4, timeout=60)
def test_2(world, tmp_path):
    assert limits() == BEFORE
    assert not hasattr(open, "__wrapped__")
    (tmp_path / "ckpt").write_text("at once")
    world.barrier("end")
"""


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """Start pytest in a directory of its own, and wait until a rank is frozen."""
    run = start_pytest(tmp_path, WORLDS, f"--multihost-launch={request.param}")
    try:
        await_that(lambda: len(stopped(tmp_path)) >= 2)  # the frozen rank and its child
        time.sleep(0.3)  # the others are struck in the same moment
        yield run
    finally:
        run.kill()
        for process in living(tmp_path):
            process.kill()
        run.communicate(timeout=20)


def stopped(path: Path) -> list[psutil.Process]:
    """Return those of them that are stopped."""
    found = []
    for process in living(path):
        try:
            if process.status() == psutil.STATUS_STOPPED:
                found.append(process)
        except psutil.Error:
            continue
    return found


LAUNCHES = pytest.mark.parametrize("run", ["fork", "server"], indirect=True)


@LAUNCHES
def test_ctrl_c_ends_ranks_that_faults_hold(run: subprocess.Popen[str], tmp_path: Path) -> None:
    """At once, and the next run in the same place is well."""
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=30)
    assert "KeyboardInterrupt" in output
    await_that(lambda: living(tmp_path) == [])
    output, _ = start_pytest(tmp_path, WORLDS, "-k", "test_2").communicate(timeout=30)
    assert "1 passed" in output


@LAUNCHES
def test_a_killed_controller_leaves_no_rank_that_faults_hold(
    run: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Nobody is left who could continue a stopped process: it must be dead."""
    run.kill()
    run.wait()
    await_that(lambda: living(tmp_path) == [])
    output, _ = start_pytest(tmp_path, WORLDS, "-k", "test_2").communicate(timeout=30)
    assert "1 passed" in output


@LAUNCHES
def test_a_killed_server_leaves_no_rank_that_faults_hold(
    run: subprocess.Popen[str], tmp_path: Path
) -> None:
    """It was to continue them; the next test of the run is well with its replacement."""
    server = server_of(run)
    assert server is not None
    server.kill()
    output, _ = run.communicate(timeout=60)
    assert "1 passed, 1 error" in output or "1 failed, 1 passed" in output
    await_that(lambda: living(tmp_path) == [])
