"""Open MPI's launcher: it starts processes that join one run, ranks, and processes that look."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import HANG, await_that

pytestmark = pytest.mark.launchers

MULTIHOST = (sys.executable, "-m", "pytest_multihost.core.command.main")
LIMIT_S = 240.0
LOCK = """
import fcntl, os, sys, time

def read_shard():
    time.sleep(600)

file = open("lock", "a")
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    fcntl.flock(file, fcntl.LOCK_EX)
    open("up1", "w").close()
    read_shard()
while True:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        break
    fcntl.flock(file, fcntl.LOCK_UN)
    time.sleep(0.05)
open("up" + os.environ["OMPI_COMM_WORLD_RANK"], "w").close()
fcntl.flock(file, fcntl.LOCK_EX)
"""


@pytest.fixture
def mpirun() -> Sequence[str]:
    """Return what starts processes; skip where Open MPI is not installed."""
    program = shutil.which("mpirun")
    if program is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in version.stdout:
        pytest.skip("this mpirun is not Open MPI's")
    return (program, *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe")


def run(command: Sequence[str], path: Path) -> subprocess.CompletedProcess[str]:
    """Return what a command has printed."""
    return subprocess.run(
        command, cwd=path, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


def test_processes_of_mpirun_join_one_run(mpirun: Sequence[str], tmp_path: Path) -> None:
    """The rank that hangs is named, once, and mpirun ends with the run's exit code."""
    (tmp_path / "train.py").write_text(HANG)
    done = run([*mpirun, "-n", "4", *MULTIHOST, "run", "train.py"], tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("HUNG  rank 2 never reached world.barrier") == 1
    assert "time.sleep(600)" in done.stdout
    assert "multihost run:" not in done.stderr


@pytest.fixture
def job(mpirun: Sequence[str], tmp_path: Path) -> Iterator[int]:
    """Three ranks of mpirun's: rank 1 sleeps with a lock that the others ask for."""
    (tmp_path / "train.py").write_text(LOCK)
    command = [*mpirun, "-n", "3", sys.executable, "train.py"]
    with subprocess.Popen(command, cwd=tmp_path) as started:
        try:
            await_that(lambda: len(list(tmp_path.glob("up*"))) == 3)
            yield started.pid
        finally:
            started.terminate()


def culprits_in(done: subprocess.CompletedProcess[str]) -> tuple[Any, ...]:
    """Return whom a verdict names."""
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["diagnosis"]
    return found["culprits"], found["waiting"], found["where"]["source"]


def test_ranks_of_mpirun_are_found_by_it(job: int, tmp_path: Path) -> None:
    """They say their ranks as Open MPI does."""
    done = run([*MULTIHOST, "attach", "--json", "-", "--children-of", str(job)], tmp_path)
    assert culprits_in(done) == ([1], [0, 2], "time.sleep(600)")


def test_processes_that_look_are_started_by_mpirun(
    mpirun: Sequence[str], job: int, tmp_path: Path
) -> None:
    """Two on one machine see the same ranks, which count once."""
    look = [*MULTIHOST, "attach", "--join", "--json", "-", "--children-of", str(job)]
    assert culprits_in(run([*mpirun, "-n", "2", *look], tmp_path))[0] == [1]
