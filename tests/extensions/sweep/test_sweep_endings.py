"""Sweeps that somebody ends: nothing is left, and what was found can be gone on from."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import await_that, living, start_pytest
from runtimes import needs

pytestmark = [needs("torch"), pytest.mark.timeout(300)]

# A sweep of one line in a loop is over after one world, and a look at all processes may take longer
# than that. So each part has lines of its own, and each world takes a while.
HEAD = """
import pytest, time
import torch.distributed as dist

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_many(world, shared_tmp_path):
    time.sleep(1)
"""
PART = """
    if world.rank == 0:
        (shared_tmp_path / "part-{number}").write_text("weights")
    dist.barrier()
"""
MANY = HEAD + "".join(PART.format(number=number) for number in range(12))

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a sweep in a directory of its own; at the end nothing may be alive that works there."""
    started = []

    def start(*args: str) -> subprocess.Popen[str]:
        started.append(start_pytest(tmp_path, MANY, "--multihost-sweep=fails", *args))
        return started[-1]

    yield start
    for run in started:
        run.kill()
    await_that(lambda: all(run.poll() is not None for run in started))
    left = living(tmp_path)
    for process in left:
        process.kill()
    for run in started:
        run.communicate(timeout=20)
    assert left == []


def lanes_of(path: Path) -> list[psutil.Process]:
    """Return the processes of lanes, and the one that forks them."""
    return [
        each
        for each in living(path)
        if "pytest_multihost.extensions.sweep.lanes" in command_of(each)
    ]


def command_of(process: psutil.Process) -> str:
    """Return the command of a process; empty if it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def ranks_started(path: Path) -> int:
    """Return how many processes there are that neither are lanes nor pytest itself."""
    return len(living(path)) - len(lanes_of(path))


def is_under_way(path: Path) -> bool:
    """Return whether several lanes run worlds."""
    return len(lanes_of(path)) > 3 and ranks_started(path) > 6


def result(path: Path) -> dict[str, Any]:
    """Return the newest sweep.json."""
    found = path.glob(".pytest_multihost/*/*/sweep.json")
    newest = max(found, key=lambda each: each.stat().st_mtime)
    return dict(json.loads(newest.read_text()))


def test_nothing_outlives_a_sweep_that_is_killed(start: Start, tmp_path: Path) -> None:
    """SIGKILL of pytest while its lanes run worlds: lanes, servers and ranks end."""
    run = start()
    await_that(lambda: is_under_way(tmp_path), timeout_s=120)
    run.kill()
    run.wait()
    await_that(lambda: living(tmp_path) == [])


def test_a_lane_that_is_killed_is_replaced(start: Start, tmp_path: Path) -> None:
    """What it was running is run again; the sweep has a result for every disturbance."""
    run = start("--multihost-sweep-budget=30")  # less than the limit below, on a busy machine too
    await_that(lambda: is_under_way(tmp_path), timeout_s=120)
    lanes = [each for each in lanes_of(tmp_path) if each.ppid() != run.pid]
    lanes[0].kill()
    output, _ = run.communicate(timeout=110)
    found = result(tmp_path)
    assert len(found["runs"]) + sum(each["count"] for each in found["left_out"]) == len(
        found["plan"]["disturbances"]
    ), output
    assert not [each for each in found["left_out"] if each["reason"] == "lost"]


def test_an_interrupted_sweep_shows_what_it_has(start: Start, tmp_path: Path) -> None:
    """After Ctrl-C, and no process of it goes on."""
    run = start("--multihost-sweep-budget=100")
    await_that(lambda: is_under_way(tmp_path), timeout_s=120)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=110)
    first = result(tmp_path)
    assert first["status"] == "interrupted"
    assert "KeyboardInterrupt" in output
    assert "left out" in output
    left = sum(each["count"] for each in first["left_out"])
    assert left == len(first["plan"]["disturbances"]) - len(first["runs"]) > 0
    await_that(lambda: living(tmp_path) == [])
