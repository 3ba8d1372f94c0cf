"""`multihost attach` as a user who is not root: what may be read, and how."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import start_together

ATTACH = ("-m", "pytest_multihost.core.command.main", "attach")
USER, OTHER = 64321, 64322
"""Users without a name."""

ROOT_ALONE = ("setpriv", "--bounding-set", "-sys_ptrace")
PROGRAM = """
import ctypes, fcntl, os, sys, time

def read_shard():
    time.sleep(600)

rank = int(os.environ["RANK"])
file = open(sys.argv[1] + "/lock", "a")
if rank == 1:
    fcntl.flock(file, fcntl.LOCK_EX)
if "SEALED" in os.environ:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
print("up", flush=True)
sys.stdin.readline()
print("on", flush=True)
if rank == 1:
    read_shard()
fcntl.flock(file, fcntl.LOCK_EX)
"""
Ranks = list[subprocess.Popen[bytes]]


def entry(user: int) -> list[str]:
    """Return what runs a command as a user."""
    return ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that the users can read; skip where they cannot run Python."""
    if os.geteuid() != 0:
        pytest.skip("only root can run something as another user")
    try:
        program = "import psutil, pytest_multihost"
        command = [*entry(USER), sys.executable, "-c", program]
        subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"Python cannot be run as another user: {error}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "train.py").write_text(PROGRAM)
        yield folder


@pytest.fixture
def job(folder: Path) -> Iterator[Ranks]:
    """Two ranks of a user's: rank 1 sleeps with the lock of a file that rank 0 asks for."""
    yield from started(folder)


@pytest.fixture
def sealed_job(folder: Path) -> Iterator[Ranks]:
    """The same, of processes that do not let themselves be read."""
    yield from started(folder, SEALED="1")


def started(folder: Path, **variables: str) -> Iterator[Ranks]:
    """Start two ranks, and end them."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **variables}
    ranks = [
        subprocess.Popen(
            [*entry(USER), sys.executable, str(folder / "train.py"), str(folder)],
            env={**os.environ, **shared, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    start_together(ranks)
    yield ranks
    for each in ranks:
        with each:
            each.kill()


def attach(
    folder: Path, who: Sequence[str], *options: str | int
) -> subprocess.CompletedProcess[str]:
    """Run the command as somebody."""
    return subprocess.run(
        [*who, sys.executable, *ATTACH, *map(str, options)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_users_own_job_is_judged_by_proof(folder: Path, job: Ranks) -> None:
    """No right is needed but those of the job's user, if the kernel does not ask for more."""
    done = attach(folder, entry(USER), "--json", "-", job[0].pid)
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text() != "0\n":
        assert "sudo sysctl kernel.yama.ptrace_scope=0" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout)
    found = verdict["diagnosis"]
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [1], [0])
    assert found["where"]["source"] == "time.sleep(600)"
    assert "proven" in verdict["reason"]


@pytest.mark.parametrize("how", ["pid", "match", "parent"])
def test_another_users_job_is_refused_with_what_gives_the_right(
    folder: Path, job: Ranks, how: str
) -> None:
    """However it is found; the command can be copied."""
    ways: dict[str, Sequence[str | int]] = {
        "pid": [job[0].pid],
        "match": ["--match", f"{folder}/train.py"],
        "parent": ["--children-of", os.getpid()],
    }
    done = attach(folder, entry(OTHER), *ways[how])
    assert done.returncode == 1
    # A child of the tests' own process may be found first.
    owner = f"(user {USER}|root)" if how == "parent" else f"user {USER}"
    assert re.search(rf"It belongs to {owner}, and you are user {OTHER}\.", done.stderr)
    again = f"sudo {sys.executable} -P -m pytest_multihost.core.command.main attach {ways[how][0]}"
    assert again in done.stderr


def test_processes_of_others_are_counted_in_the_list(folder: Path, job: Ranks) -> None:
    """A job that is not listed may be one of them."""
    assert job
    done = attach(folder, entry(OTHER))
    assert "processes of other users could not be read: sudo " in done.stdout


def test_root_without_ptrace_is_told_which_capability_is_missing(folder: Path, job: Ranks) -> None:
    """As in a container, which then has to be started with it."""
    done = attach(folder, ROOT_ALONE, job[0].pid)
    assert done.returncode == 1
    assert "This is root without CAP_SYS_PTRACE" in done.stderr
    assert "--cap-add=SYS_PTRACE" in done.stderr


def test_a_job_that_lets_nobody_read_it_is_refused(folder: Path, sealed_job: Ranks) -> None:
    """Not even its own user may; root may."""
    done = attach(folder, entry(USER), f"0={sealed_job[0].pid}")
    assert done.returncode == 1
    assert "does not let itself be read" in done.stderr
    assert "sudo " in done.stderr
