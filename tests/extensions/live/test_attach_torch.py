"""Jobs of torch as it starts them itself: torchrun's agent, and DDP's backward passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import await_that, wait_until_idle

pytest.importorskip("torch", reason="the jobs are torch's")

ATTACH = (sys.executable, "-m", "pytest_multihost.core.command.main", "attach")
BEGIN = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def read_shard():
    time.sleep(100000)

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 1)) if "ddp" in sys.argv else None
dist.barrier()
Path(sys.argv[1], f"up-{rank}").touch()
"""
STEP = "model(torch.ones(4, 64)).sum().backward()\n"

Torchrun = Callable[..., psutil.Process]


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Torchrun]:
    """Start a program by torchrun and return its agent when all ranks have begun; end it all."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(text: str, *arguments: str, size: int = 3) -> psutil.Process:
        program = tmp_path / "train.py"
        program.write_text(BEGIN + text)
        run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
        command = [*run, str(size), str(program), str(tmp_path), *arguments]
        started.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        ups = [tmp_path / f"up-{rank}" for rank in range(size)]
        await_that(lambda: all(each.exists() for each in ups), 240)
        return psutil.Process(started[0].pid)

    yield begin
    for each in started:
        for child in psutil.Process(each.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        each.kill()
        each.communicate()


def looked_at(agent: psutil.Process) -> dict[str, Any]:
    """Return the verdict on the job of an agent."""
    command = [*ATTACH, "--json", "-", "--children-of", str(agent.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_agent_is_no_way_out_of_a_hang(torchrun: Torchrun) -> None:
    """All ranks have a connection to its store, and it answers only what ranks ask."""
    agent = torchrun("if rank == 1: read_shard()\ndist.barrier()\n")
    wait_until_idle([each.pid for each in agent.children()])
    verdict = looked_at(agent)
    found = verdict["diagnosis"]
    assert (found["culprits"], found["where"]["source"]) == ([1], "time.sleep(100000)")
    assert "proven" in (verdict["reason"] or ""), found["notes"]


def test_a_rank_that_waits_for_a_key_of_the_agents_store_is_not_proven_to_hang(
    torchrun: Torchrun,
) -> None:
    """An innocent: somebody who is no rank may set it."""
    agent = torchrun("torch.distributed.distributed_c10d._get_default_store().wait(['key'])\n")
    wait_until_idle([each.pid for each in agent.children()])
    assert "proven" not in (looked_at(agent)["reason"] or "")


def test_the_agent_is_no_rank(torchrun: Torchrun) -> None:
    """Who names it reads how to name its ranks."""
    agent = torchrun("read_shard()\n", size=1)
    command = [*ATTACH, str(agent.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert f"multihost attach --children-of {agent.pid}" in done.stderr


def test_a_backward_pass_against_a_barrier_is_a_mismatch(torchrun: Torchrun) -> None:
    """DDP reduces in C++, without a frame of Python's; both lines are shown."""
    agent = torchrun(f"if rank == 2: dist.barrier()\n{STEP}", "ddp")
    wait_until_idle([each.pid for each in agent.children()])
    found = looked_at(agent)["diagnosis"]
    assert (found["kind"], found["culprits"], found["waiting"]) == ("mismatch", [2], [0, 1])
    assert (found["confidence"], found["where"]["source"]) == (
        "likely",
        "if rank == 2: dist.barrier()",
    )


def test_a_healthy_loop_of_ddp_is_not_said_to_stand_still(torchrun: Torchrun) -> None:
    """Whenever one looks, all ranks may be in the same all_reduce."""
    agent = torchrun(f"while True:\n    {STEP}    time.sleep(0.01)\n", "ddp", size=2)
    for _ in range(3):
        verdict = looked_at(agent)
        assert verdict["outcome"] == "passed"
        assert "nothing moves" not in json.dumps(verdict)
