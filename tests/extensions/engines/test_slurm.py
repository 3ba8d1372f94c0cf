"""Slurm with one machine: processes that join one run, ranks, and processes that look at them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import HANG, await_that

pytestmark = pytest.mark.launchers

MULTIHOST = (sys.executable, "-m", "pytest_multihost.core.command.main")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
LIMIT_S = 240.0
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
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 CoresPerSocket=8 RealMemory=1000
PartitionName=all Nodes={host} Default=YES OverSubscribe=FORCE:8
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Run Slurm's daemons; return the environment in which its commands find them."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing or os.geteuid() != 0:
        why = f"{', '.join(missing)} not installed: apt-get install slurm-wlm" if missing else ""
        pytest.skip(f"Slurm cannot be run here: {why or 'only root can'}")
    with tempfile.TemporaryDirectory() as name:
        folder, host, key = Path(name), socket.gethostname().partition(".")[0], b"k" * 128
        (folder / "key").write_bytes(key)
        (folder / "key").chmod(0o600)
        folder.chmod(0o755)
        text = CONFIGURATION.format(host=host, folder=folder, ports=free_ports())
        (folder / "slurm.conf").write_text(text)
        munged = ["munged", "--foreground", "--force", f"--key-file={folder}/key"]
        munged += [f"--{each}={folder}/munge.{each}" for each in ("socket", "pid-file", "log-file")]
        munged += [f"--seed-file={folder}/munge.seed"]
        commands = [munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]]
        variables = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        started = []
        try:
            with (folder / "log").open("w") as log:
                for each in commands:
                    daemon = subprocess.Popen(each, env=variables, stdout=log, stderr=log)
                    started.append(daemon)
                    if each is munged:
                        await_that((folder / "munge.socket").exists)
            await_that(lambda: "idle" in run(["sinfo"], folder, variables).stdout)
            yield variables
        finally:
            for daemon in reversed(started):
                with daemon:
                    daemon.terminate()


def free_ports() -> list[int]:
    """Return two ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run(
    command: Sequence[str], path: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Return what a command has printed."""
    return subprocess.run(
        command,
        cwd=path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


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
