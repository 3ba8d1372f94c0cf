"""Slurm with one machine: processes that join one run, ranks, and processes that look at them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import HANG, await_that, living
from slurm_cluster import run, slurm_cluster

pytestmark = pytest.mark.launchers

MULTIHOST = (sys.executable, "-m", "pytest_multihost.core.command.main")
LOCK = """
import fcntl, os, time

def read_shard():
    time.sleep(600)

file = open("lock", "a")
if os.environ["SLURM_PROCID"] == "1":
    fcntl.flock(file, fcntl.LOCK_EX)
    open("held", "w").close()
    read_shard()
while not os.path.exists("held"):
    time.sleep(0.05)
open("up" + os.environ["SLURM_PROCID"], "w").close()
fcntl.flock(file, fcntl.LOCK_EX)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Run Slurm's daemons; return the environment in which its commands find them."""
    with slurm_cluster() as variables:
        yield variables


def test_processes_of_srun_join_one_run(slurm: dict[str, str], tmp_path: Path) -> None:
    """The rank that hangs is named, once, and srun ends with the run's exit code."""
    (tmp_path / "train.py").write_text(HANG)
    done = run(["srun", "-n4", *MULTIHOST, "run", "train.py"], tmp_path, slurm)
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("HUNG  rank 2 never reached world.barrier") == 1
    assert "time.sleep(600)" in done.stdout


@pytest.fixture
def job(slurm: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Three ranks of srun's: rank 1 sleeps with a lock that the others ask for; the job's id."""
    (tmp_path / "train.py").write_text(LOCK)
    command = ["srun", "-n3", sys.executable, "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=slurm) as started:
        await_that(lambda: len(list(tmp_path.glob("up*"))) == 2)
        yield run(["squeue", "-h", "-o", "%i"], tmp_path, slurm).stdout.strip()
        started.terminate()
    await_that(lambda: not living(tmp_path))  # they would be a second job for the next test


def diagnosis_in(done: subprocess.CompletedProcess[str]) -> tuple[Any, ...]:
    """Return whom a verdict names."""
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["diagnosis"]
    return found["culprits"], found["waiting"], found["where"]["source"]


def test_ranks_of_srun_are_found_by_their_command_line(
    slurm: dict[str, str], job: str, tmp_path: Path
) -> None:
    """They say their ranks as Slurm does."""
    assert job
    done = run([*MULTIHOST, "attach", "--json", "-", "--match", "train.py"], tmp_path, slurm)
    assert diagnosis_in(done) == ([1], [0, 2], "time.sleep(600)")


def test_processes_that_look_are_a_step_of_the_job(
    slurm: dict[str, str], job: str, tmp_path: Path
) -> None:
    """Two on one machine see the same ranks, and do not take each other for ranks."""
    step = ["srun", "--overlap", "--jobid", job, "-n2"]
    look = [*MULTIHOST, "attach", "--join", "--json", "-", "--match", "train.py"]
    assert diagnosis_in(run([*step, *look], tmp_path, slurm)) == ([1], [0, 2], "time.sleep(600)")
