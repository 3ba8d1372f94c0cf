"""A job that never heard of the plugin, looked at with `multihost attach --once`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import wait_until_idle
from runtimes import require

PROGRAM = """
import time
import torch
import torch.distributed as dist

def read_shard():
    time.sleep(600)

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
print("up", flush=True)
if dist.get_rank() == 1:
    read_shard()
dist.all_reduce(torch.ones(3))
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three ranks, started as torchrun starts them; rank 1 sleeps while the others reduce."""
    require("torch", reason="the job's collectives are torch's")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for rank in range(3)
    ]
    try:
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == b"up\n"
        wait_until_idle([each.pid for each in processes])
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.communicate()


def attach(processes: list[subprocess.Popen[bytes]], *options: str) -> str:
    """Return what the command prints about a job that hangs."""
    pids = [str(each.pid) for each in processes]
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "attach", "--once"]
    done = subprocess.run(
        [*command, *options, *pids], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.mark.smoke
@pytest.mark.claim("find out why a running job hangs")
def test_the_late_rank_and_its_line_are_named(job: list[subprocess.Popen[bytes]]) -> None:
    """Nothing was enabled in the job beforehand."""
    verdict: dict[str, Any] = json.loads(attach(job, "--json", "-"))
    found = verdict["diagnosis"]
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [1], [0, 2])
    assert found["where"]["source"] == "time.sleep(600)"
    assert (found["detected_by"], found["confidence"]) == ("attach", "likely")


def wakes(pid: int) -> str:
    """Return how often the main thread of a process has begun to wait."""
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return next(each for each in lines if each.startswith("voluntary_ctxt_switches"))


def test_the_job_is_neither_woken_nor_ended(job: list[subprocess.Popen[bytes]]) -> None:
    """No signal, no tracer: each main thread is in the same wait as before."""
    before = [wakes(each.pid) for each in job]
    assert "rank 1 never reached all_reduce" in attach(job)
    assert [each.poll() for each in job] == [None] * 3
    assert [wakes(each.pid) for each in job] == before
