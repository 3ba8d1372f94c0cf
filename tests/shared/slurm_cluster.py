"""Slurm with one machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from runs import await_that

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
LIMIT_S = 240.0
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


def skip_without_slurm() -> None:
    """Skip the test where Slurm's daemons cannot run."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing or os.geteuid() != 0:
        why = f"{', '.join(missing)} not installed: apt-get install slurm-wlm" if missing else ""
        pytest.skip(f"Slurm cannot be run here: {why or 'only root can'}")


@contextmanager
def slurm_cluster() -> Iterator[dict[str, str]]:
    """Run Slurm's daemons; yield the environment in which its commands find them."""
    skip_without_slurm()
    with tempfile.TemporaryDirectory() as name, ExitStack() as daemons:
        folder, host = Path(name), socket.gethostname().partition(".")[0]
        folder.chmod(0o755)
        text = CONFIGURATION.format(host=host, folder=folder, ports=free_ports())
        (folder / "slurm.conf").write_text(text)
        variables = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        daemons.enter_context(daemon(munge_command(folder), variables, folder))
        await_that((folder / "munge.socket").exists)
        for each in (["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            daemons.enter_context(daemon(each, variables, folder))
        await_that(lambda: "idle" in run(["sinfo"], folder, variables).stdout)
        yield variables


def munge_command(folder: Path) -> list[str]:
    """Return the command of the daemon by which Slurm's daemons and commands trust each other."""
    key = folder / "key"
    key.write_bytes(b"k" * 128)
    key.chmod(0o600)
    files = [f"--{each}={folder}/munge.{each}" for each in ("socket", "pid-file", "log-file")]
    own = [f"--key-file={key}", f"--seed-file={folder}/munge.seed"]
    return ["munged", "--foreground", "--force", *own, *files]


@contextmanager
def daemon(
    command: Sequence[str], variables: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon; its output goes to a file `log` in a folder."""
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(command, env=variables, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


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
