"""When a job of jax is said to hang whose ranks are in operations that cannot match."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import start_together

pytest.importorskip("jax", reason="the jobs are jax's")

ATTACH = (sys.executable, "-m", "pytest_multihost.core.command.main", "attach", "--json", "-")
LIMIT = "--xla_cpu_collective_timeout_seconds"
PROGRAM = """
import os, sys, jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

rank = int(os.environ["RANK"])
told = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # gloo prints lines of its own
jax.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", 2, rank)
over = NamedSharding(Mesh(np.array(jax.devices()), ("ranks",)), PartitionSpec("ranks"))
values = jax.make_array_from_process_local_data(over, np.ones((1, 4), np.float32))
total = jax.jit(lambda each: each.sum())
float(total(values))
multihost_utils.sync_global_devices("up")
print("up", file=told, flush=True)
sys.stdin.readline()
print("on", file=told, flush=True)
if rank == 0:
    multihost_utils.sync_global_devices("saved")
float(total(values))
"""

Start = Callable[[str], list[subprocess.Popen[bytes]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start two ranks with flags of XLA, and return them when they are under way; end them."""
    ranks: list[subprocess.Popen[bytes]] = []

    def begin(flags: str) -> list[subprocess.Popen[bytes]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        program = tmp_path / "train.py"
        program.write_text(PROGRAM)
        given = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "MASTER_PORT": port, "WORLD_SIZE": "2"}
        for rank in range(2):
            variables = {**os.environ, **given, "MASTER_ADDR": "127.0.0.1", "RANK": str(rank)}
            command = [sys.executable, str(program)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            ranks.append(subprocess.Popen(command, env=variables, **pipes))  # type: ignore[call-overload]
        start_together(ranks)
        return ranks

    yield begin
    for each in ranks:
        each.kill()
        each.communicate()


def looked_at(ranks: list[subprocess.Popen[bytes]]) -> dict[str, Any]:
    """Return the verdict of the first look that shows both ranks in an operation."""
    for _ in range(5):
        command = [*ATTACH, str(ranks[0].pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        found: dict[str, Any] = json.loads(done.stdout)
        if (found["diagnosis"] or {}).get("kind") == "mismatch":
            break
    return found


def test_a_program_against_a_barrier_of_two_ranks_hangs(start: Start) -> None:
    """Nobody is to blame, and gloo's timeout of half an hour is seen to be far away."""
    found = looked_at(start(""))
    assert (found["outcome"], found["diagnosis"]["kind"]) == ("hung", "mismatch")


def test_the_same_is_no_hang_if_gloo_gives_up_within_a_minute(start: Start) -> None:
    """An innocent: the ranks go on, whatever they do then."""
    found = looked_at(start(f"{LIMIT}=55"))
    assert found["outcome"] == "passed"
    assert "may time out within" in json.dumps(found)
