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
from runtimes import require

from pytest_multihost.core.watch.probes import SpiedThread
from pytest_multihost.extensions.live.numbering import (
    GivenNumber,
    given_number,
    is_idle_worker,
    job_of,
    numbers_by_argument,
    numbers_by_name,
    numbers_by_text,
    spawned_size,
)
from pytest_multihost.extensions.live.set_variables import set_variable
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


def tasks(*variables: dict[str, str]) -> dict[int, list[tuple[Frame, dict[str, str]]]]:
    """Return the frames of processes that run one function with these variables."""
    return {number: [(TRAIN, each)] for number, each in enumerate(variables, 11)}


def test_a_variable_called_rank_numbers_a_process() -> None:
    """It is no first argument, and may be larger than the number of processes that are left."""
    given = tasks({"name": "x", "rank": "5"}, {"name": "x", "rank": "3"})
    assert numbers_by_name(given) == ("rank", {11: 5, 12: 3})
    assert job_of([11, 12], {11: 5, 12: 3}, None, "process 1", is_told=True).pids == {3: 12, 5: 11}


def test_two_processes_with_the_same_rank_are_not_numbered_by_it() -> None:
    """They may be of two jobs, or it is the rank of a machine."""
    assert numbers_by_name(tasks({"rank": "0"}, {"rank": "0"}))[1] == {}


def test_a_process_without_a_rank_is_not_numbered_beside_others() -> None:
    """It would get a number that another rank elsewhere has."""
    assert numbers_by_name(tasks({"rank": "0"}, {"n": "1"}))[1] == {}


def test_the_argument_that_counts_the_processes_numbers_them() -> None:
    """A port or a size that all have does not."""
    given = tasks({"port": "7001", "n": "2", "r": "1"}, {"port": "7001", "n": "2", "r": "0"})
    assert numbers_by_argument(given) == {11: 1, 12: 0}


def test_arguments_that_do_not_count_the_processes_number_nothing() -> None:
    """Two seeds, two ports."""
    assert numbers_by_argument(tasks({"seed": "7"}, {"seed": "8"})) == {}


def test_ranks_that_programs_set_number_them_if_all_differ() -> None:
    """Children inherit the variable of a launcher that is a rank itself."""
    assert numbers_by_text({11: "1", 12: "0"}) == {11: 1, 12: 0}
    assert [numbers_by_text({11: "0", 12: each}) for each in ("0", None, "x")] == [{}] * 3


def test_a_variable_that_a_program_has_set_is_read_from_its_memory() -> None:
    """/proc shows only those with which it was started."""
    code = "import os; os.environ['RANK'] = '3'; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        found = [set_variable(program.pid, name) for name in ("RANK", "NO_SUCH_RANK")]
        program.communicate(b"\n", timeout=60)
    assert found == ["3", None]


POOL, QUEUE = "/usr/lib/python3.12/multiprocessing/pool.py", "multiprocessing/queues.py"
WORKER = (Frame(POOL, 114, "worker"), {})


def test_a_worker_of_a_pool_that_waits_for_a_task_is_idle() -> None:
    """Its innermost frame reads the queue of tasks."""
    get = (Frame(f"/usr/lib/python3.12/{QUEUE}", 386, "SimpleQueue.get"), {})
    assert is_idle_worker(main_thread(get, WORKER))


def test_a_worker_that_unpickles_or_runs_a_task_is_not_idle() -> None:
    """An innocent: what it imports may take long."""
    get = (Frame(f"/usr/lib/python3.12/{QUEUE}", 389, "SimpleQueue.get"), {})
    assert not is_idle_worker(main_thread((STEP, {}), get, WORKER))
    assert not is_idle_worker(main_thread((Frame(POOL, 48, "mapstar"), {}), WORKER))


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
        file = open(self.given[1] + "/lock", "w")
        if self.given[0] == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
            open(self.given[1] + "/locked", "w").close()
        while not os.path.exists(self.given[1] + "/locked"):
            time.sleep(0.01)
        open(f"{self.given[1]}/up-{self.given[0]}", "w").close()
        if self.given[0] == 0:
            time.sleep(100000)
        fcntl.flock(file, fcntl.LOCK_EX)

if __name__ == "__main__":
    how, folder = sys.argv[1:]
    if how == "spawn":
        import torch.multiprocessing
        torch.multiprocessing.spawn(work, args=(folder,), nprocs=3)
    elif how.startswith("pool"):
        context = multiprocessing.get_context(how.removeprefix("pool-"))
        with context.Pool(4) as pool:
            pool.starmap(work, [(rank, folder) for rank in (2, 1, 0)], chunksize=1)
    elif how == "lost":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for rank in range(3):
                open(f"{folder}/up-{rank}", "w").close()
            pool.apply(os._exit, (1,))
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
        require("torch", reason="its spawn is asked for")
    program = tmp_path / "train.py"
    program.write_text(JOB)
    # By a shell, because a parent that runs may be about to end what it has started.
    command = ["sh", "-c", '"$@" & echo $! > "$0"; wait', str(tmp_path / "pid")]
    command += [sys.executable, str(program), request.param, str(tmp_path)]
    launcher = subprocess.Popen(command, start_new_session=True)
    try:
        await_that(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(3)), 120)
        yield int((tmp_path / "pid").read_text())
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


@pytest.mark.parametrize(
    "started", ["spawn", "process", "pool-fork", "pool-forkserver"], indirect=True
)
def test_the_rank_is_named_by_what_it_was_started_with(started: int) -> None:
    """With torch's spawn, with multiprocessing, and as a task of a pool with one worker more."""
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


def settled(launcher: int) -> dict[str, Any]:
    """Return the verdict on a job that is said to hang; the last one if it is not."""
    for _ in range(20):
        done = attach("--json", "-", "--children-of", str(launcher))
        if done.returncode == 0:
            break
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("started", ["lost"], indirect=True)
def test_a_program_whose_pool_has_lost_a_task_is_looked_at_itself(started: int) -> None:
    """The worker that had the task has ended, and the others wait for another one."""
    verdict = settled(started)
    found = verdict["diagnosis"]
    assert (verdict["outcome"], found["kind"], found["culprits"]) == ("hung", "stuck", [0])
    assert found["where"]["source"] == "pool.apply(os._exit, (1,))"
    assert any("is called rank 0" in each for each in found["notes"])


@pytest.mark.parametrize("started", ["process"], indirect=True)
def test_who_names_the_launcher_reads_how_to_name_its_job(started: int) -> None:
    """It is no rank itself."""
    done = attach(str(started))
    assert done.returncode == 1
    assert f"multihost attach --children-of {started}" in done.stderr
