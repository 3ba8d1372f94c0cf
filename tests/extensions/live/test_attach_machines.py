"""`multihost attach` on a job whose ranks are on two machines: one process looks on each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from machines import CARD, two_machines
from runs import start_together, wait_until_idle
from runtimes import require

ATTACH = (sys.executable, "-m", "pytest_multihost.core.command.main", "attach")
ADDRESS = "10.98.0.1"
LIMIT_S = 240.0
PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist

def read_shard():
    time.sleep(600)

dist.init_process_group("gloo")
print("up", flush=True)
sys.stdin.readline()
print("on", flush=True)
if dist.get_rank() == 3:
    read_shard()
dist.all_reduce(torch.ones(3))
"""
SOCKETS = """
import os, socket, sys, time

def read_shard():
    time.sleep(600)

rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], 7100)
if rank == 0:
    with socket.create_server(address) as server:
        others = {}
        for _ in range(3):
            connection, _ = server.accept()
            others[connection.recv(1)] = connection
else:
    while True:
        try:
            first = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.1)
    first.sendall(b"%d" % rank)
print("up", flush=True)
sys.stdin.readline()
print("on", flush=True)
if rank == 3:
    read_shard()
elif rank == 0:
    others[b"3"].recv(1)
else:
    first.recv(1)
"""
"""Rank 0 waits for rank 3, which sleeps, and ranks 1 and 2 for rank 0; no thread polls."""

Entry = Sequence[str]


@pytest.fixture
def machines() -> Iterator[tuple[Entry, Entry]]:
    """Two machines: what a command has to begin with to run there."""
    with two_machines() as both:
        yield both


@pytest.fixture
def job(tmp_path: Path, machines: tuple[Entry, Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Four ranks, two on each machine; rank 3 sleeps while the others reduce."""
    require("torch", reason="the job's collectives are torch's")
    yield from started(PROGRAM, tmp_path, machines)


@pytest.fixture
def socket_job(tmp_path: Path, machines: tuple[Entry, Entry]) -> Iterator[tuple[Entry, Entry]]:
    """The same of plain Python; what the others wait for comes through sockets."""
    yield from started(SOCKETS, tmp_path, machines)


def started(text: str, path: Path, machines: tuple[Entry, Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Start four ranks, and end them."""
    program = path / "train.py"
    program.write_text(text)
    shared = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": "7100", "WORLD_SIZE": "4"}
    shared |= {"GLOO_SOCKET_FAMILY": "AF_INET", "OMP_NUM_THREADS": "1"}
    ranks = []
    for rank in range(4):
        entry = machines[rank // 2]
        own = {**os.environ, **shared, "RANK": str(rank), "GLOO_SOCKET_IFNAME": CARD}
        command = [*entry, sys.executable, str(program)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        ranks.append(subprocess.Popen(command, env=own, **pipes))
    start_together(ranks)
    entered = (psutil.Process(each.pid).children()[0] for each in ranks)
    wait_until_idle([each.pid for each in entered])
    yield machines
    for each in ranks:
        with each:  # what it has started there ends with the machine
            each.kill()


def look(
    machines: Sequence[Entry], path: Path, *options: str, **variables: str
) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of a process on each machine; they look together."""
    about = {"PYTEST_MULTIHOST_ADDRESS": f"{ADDRESS}:7101", "PYTEST_MULTIHOST_SIZE": "2"}
    started = [
        subprocess.Popen(
            [*entry, *ATTACH, *options],
            cwd=path,
            env={**os.environ, **about, "PYTEST_MULTIHOST_RANK": str(rank), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, entry in enumerate(machines)
    ]
    ended = [(each, *each.communicate(timeout=LIMIT_S)) for each in started]
    return [(each.returncode, output, errors) for each, output, errors in ended]


def test_the_late_rank_on_another_machine_is_named(
    job: tuple[Entry, Entry], tmp_path: Path
) -> None:
    """With its line, machine and process there, by rank 0's process alone."""
    (code, output, errors), other = look(job, tmp_path, "--match", "train.py", "--json", "-")
    assert (code, other[0]) == (0, 0), errors + other[2]
    verdict: dict[str, Any] = json.loads(output)
    found = verdict["diagnosis"]
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [3], [0, 1, 2])
    assert found["where"]["source"] == "time.sleep(600)"
    hosts = [each["host"] for each in verdict["rank_results"]]
    assert hosts == ["alpha", "alpha", "beta", "beta"]
    assert verdict["outcome"] == "hung"
    assert other[1] == ""


def test_a_hang_between_machines_is_proven(socket_job: tuple[Entry, Entry], tmp_path: Path) -> None:
    """Each connection is seen at both of its ends."""
    (code, output, errors), _ = look(socket_job, tmp_path, "--match", "train.py", "--json", "-")
    assert code == 0, errors
    verdict: dict[str, Any] = json.loads(output)
    found = verdict["diagnosis"]
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [3], [0, 1, 2])
    assert "proven" in (verdict["reason"] or ""), found["notes"]


def test_the_job_is_followed_on_all_machines(job: tuple[Entry, Entry], tmp_path: Path) -> None:
    """A secret of the user's is known to all, and no file is written."""
    secret = "correct horse battery staple"  # noqa: S105 - guards nothing
    first, second = look(
        job, tmp_path, "--follow", "--match", "train.py", PYTEST_MULTIHOST_SECRET=secret
    )
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert first[1].startswith("HUNG")
    assert "rank 3 never reached all_reduce" in first[1]
    assert "ranks 2,3 on beta: processes" in first[1]
    assert not (tmp_path / ".pytest_multihost").exists()


def test_a_machine_without_ranks_is_named(machines: tuple[Entry, Entry], tmp_path: Path) -> None:
    """All of its ranks may have ended; the job may also be another one."""
    first, second = look(machines, tmp_path, "--match", "no-such-script.py")
    assert (first[0], second[0]) == (1, 1)
    assert "no machine has ranks of the job" in first[2]
    assert "no ranks on beta: no Python process has 'no-such-script.py'" in first[2]
