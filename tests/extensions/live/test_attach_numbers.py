"""Which rank a process is that has no variables of a launcher: what `spawn` passed, or a guess."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from runs import await_that

from pytest_multihost.core.watch.probes import SpiedThread
from pytest_multihost.extensions.live.numbering import (
    GivenNumber,
    given_number,
    job_of,
    spawned_size,
)
from pytest_multihost.testing import Frame

ATTACH = (sys.executable, "-m", "pytest_multihost.core.command.main", "attach")
SPAWN = "/venv/lib/python3.12/site-packages/torch/multiprocessing/spawn.py"
PROCESS = "/usr/lib/python3.12/multiprocessing/process.py"
STEP, TRAIN = Frame("/job/train.py", 7, "step"), Frame("/job/train.py", 17, "train")


def main_thread(*frames: tuple[Frame, dict[str, str]]) -> tuple[SpiedThread, ...]:
    """Return a process's main thread with these frames, innermost first."""
    stack, values = zip(*frames, strict=True)
    return (SpiedThread(9, "MainThread", True, False, stack, values),)


# What a stack shows


def test_spawn_passes_a_process_its_number() -> None:
    """The function may have changed its own first argument since."""
    threads = main_thread(
        (STEP, {"n": "5"}),
        (TRAIN, {"rank": "7"}),
        (Frame(SPAWN, 96, "_wrap"), {"fn": "<function>", "i": "2", "args": "(3)"}),
    )
    assert given_number(threads) == GivenNumber(2, is_by_spawn=True)


def test_the_first_argument_of_a_process_is_its_number() -> None:
    """Of the function that multiprocessing calls, not of those that it calls."""
    run = (Frame(PROCESS, 108, "BaseProcess.run"), {"self": "<Process>"})
    found = given_number(main_thread((STEP, {"n": "5"}), (TRAIN, {"rank": "1", "n": "4"}), run))
    assert found == GivenNumber(1, is_by_spawn=False)
    assert given_number(main_thread((STEP, {"n": "5"}), (TRAIN, {"self": "<Job>"}), run)) is None


@pytest.mark.parametrize("text", ["", "x", "-1", "99999999999", "3.0", "²"])
def test_what_is_no_small_number_is_none(text: str) -> None:
    """It was read while the process went on, and may be anything."""
    assert given_number(main_thread((Frame(SPAWN, 96, "_wrap"), {"i": text}))) is None


def test_a_users_function_with_the_name_of_spawns_tells_nothing() -> None:
    """Only torch's file has torch's function."""
    assert given_number(main_thread((Frame("/job/spawn.py", 1, "_wrap"), {"i": "2"}))) is None


def test_the_launchers_stack_shows_how_many_were_started() -> None:
    """Even where one of them has ended."""
    frame = Frame(SPAWN, 300, "start_processes")
    assert spawned_size(main_thread((STEP, {}), (frame, {"nprocs": "4"}))) == 4


# Which job follows


def test_numbers_that_were_passed_count_and_not_the_order_of_start() -> None:
    """The last rank was started first."""
    job = job_of([11, 12, 13], {11: 2, 12: 1, 13: 0}, None, "process 1")
    assert (job.pids, job.is_guess) == ({0: 13, 1: 12, 2: 11}, False)


def test_without_numbers_the_order_of_start_is_a_guess() -> None:
    """A note says so."""
    job = job_of([11, 12], {}, None, "process 1")
    assert (job.pids, job.is_guess) == ({0: 11, 1: 12}, True)
    assert "order of start" in job.notes[0]


def test_the_only_number_that_is_left_is_no_guess() -> None:
    """The stack of one process could not be read."""
    job = job_of([11, 12, 13], {11: 2, 13: 0}, None, "process 1")
    assert (job.pids, job.is_guess) == ({0: 13, 1: 12, 2: 11}, False)


def test_numbers_that_cannot_be_ranks_are_not_believed() -> None:
    """Two ports, or twice the same number: first arguments may be anything."""
    assert job_of([11, 12], {11: 7001, 12: 7002}, None, "process 1").is_guess
    assert job_of([11, 12], {11: 0, 12: 0}, None, "process 1").is_guess


def test_a_rank_that_spawn_has_started_and_that_is_gone_has_ended() -> None:
    """The others keep their numbers."""
    job = job_of([11, 13], {11: 0, 13: 2}, 3, "process 1")
    assert (job.pids, job.size, job.ended) == ({0: 11, 2: 13}, 3, {1})


# Real jobs

JOB = """
import fcntl, multiprocessing, os, sys, time

def work(rank, folder):
    file = open(folder + "/lock", "w")
    if rank == 0:
        fcntl.flock(file, fcntl.LOCK_EX)
        open(folder + "/locked", "w").close()
    while not os.path.exists(folder + "/locked"):
        time.sleep(0.01)
    open(f"{folder}/up-{rank}", "w").close()
    if rank == 0:
        time.sleep(100000)
    fcntl.flock(file, fcntl.LOCK_EX)

class Work:
    def __init__(self, *given):
        self.given = given
    def __call__(self):
        work(*self.given)

if __name__ == "__main__":
    how, folder = sys.argv[1:]
    if how == "spawn":
        import torch.multiprocessing
        torch.multiprocessing.spawn(work, args=(folder,), nprocs=3)
    else:
        context = multiprocessing.get_context("fork")
        for rank in (2, 1, 0):
            given = (work, (rank, folder)) if how == "process" else (Work(rank, folder), ())
            context.Process(target=given[0], args=given[1]).start()
            time.sleep(0.1)
"""


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """A process that has started three ranks: rank 0 holds a lock that the others ask for."""
    if request.param == "spawn":
        pytest.importorskip("torch", reason="its spawn is asked for")
    program = tmp_path / "train.py"
    program.write_text(JOB)
    command = [sys.executable, str(program), request.param, str(tmp_path)]
    launcher = subprocess.Popen(command, start_new_session=True)
    try:
        await_that(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(3)), 120)
        yield launcher.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()


def attach(*options: str) -> subprocess.CompletedProcess[str]:
    """Return what the command prints."""
    return subprocess.run(
        [*ATTACH, *options], capture_output=True, text=True, check=False, timeout=120
    )


def diagnosis(launcher: int) -> dict[str, Any]:
    """Return the diagnosis of the job that a process has started."""
    done = attach("--json", "-", "--children-of", str(launcher))
    found: dict[str, Any] = json.loads(done.stdout)["diagnosis"]
    return found


@pytest.mark.parametrize("started", ["spawn", "process"], indirect=True)
def test_the_rank_is_named_by_what_it_was_started_with(started: int) -> None:
    """With torch's spawn, and with multiprocessing, which has started it last."""
    found = diagnosis(started)
    assert (found["culprits"], found["waiting"]) == ([0], [1, 2])
    assert found["where"]["source"] == "time.sleep(100000)"
    assert "probably" not in found["summary"]


@pytest.mark.parametrize("started", ["object"], indirect=True)
def test_a_number_that_is_a_guess_is_not_stated_flatly(started: int) -> None:
    """What runs there has no arguments: the one that was started last is called the last rank."""
    found = diagnosis(started)
    assert found["culprits"] == [2]
    assert found["summary"].startswith("probably ")
    assert any("order of start" in each for each in found["notes"])


@pytest.mark.parametrize("started", ["process"], indirect=True)
def test_who_names_the_launcher_reads_how_to_name_its_job(started: int) -> None:
    """It is no rank itself."""
    done = attach(str(started))
    assert done.returncode == 1
    assert f"multihost attach --children-of {started}" in done.stderr
