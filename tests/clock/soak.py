"""Programs in which no timeout may come, though all their limits are short and their sleeps long.

Run by `benchmarks/clock_soak.py` many times with a clock that jumps: a timeout here is one that no
real run would have seen.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROUNDS = range(int(os.environ.get("SOAK_ROUNDS", "1")))
LIMIT_S = 5


def compute(seconds: float) -> int:
    """Use the processor, by the time that this process gets of it."""
    until, count = time.process_time() + seconds, 0
    while time.process_time() < until:
        count += 1
    return count


def write_durably(path: Path) -> None:
    """Write a file to the disk."""
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())


@pytest.mark.multihost(ranks=4, backend="none", timeout=3600)
@pytest.mark.parametrize("number", ROUNDS)
def test_torch(world, shared_tmp_path: Path, number: int) -> None:
    """Collectives with a limit of 5 s between work of all kinds, and sleeps of a minute."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    limit = datetime.timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    group = dist.new_group(timeout=limit)
    data = TensorDataset(torch.arange(16))
    for step in range(20):
        if step % 5 == world.rank:
            compute(0.05)
        if step % 7 == 0:
            write_durably(shared_tmp_path / f"{world.rank}-{step}")
        if step % 6 == world.rank:
            code = "import time; time.sleep(2)"
            subprocess.run([sys.executable, "-S", "-c", code], check=True)
        if step == 9:
            batches = [each[0].sum().item() for each in DataLoader(data, 4, num_workers=2)]
            assert sum(batches) == 120
        if step % 10 == 0:
            time.sleep(60)
        x = torch.ones(1000) * world.rank
        dist.all_reduce(x, group=group)
        assert x[0] == 6
    dist.barrier(group=group)
    dist.destroy_process_group()


@pytest.mark.multihost(ranks=2, backend="jax", timeout=3600)
@pytest.mark.parametrize("number", ROUNDS)
def test_jax(world, shared_tmp_path: Path, number: int) -> None:
    """Sums, barriers, keys, and a checkpoint that is written and read."""
    import numpy as np
    import orbax.checkpoint as ocp
    from jax._src import distributed
    from jax.experimental import multihost_utils

    client = distributed.global_state.client
    for step in range(20):
        if step % 5 == world.rank:
            compute(0.05)
        if step % 10 == 0:
            time.sleep(60)
        found = multihost_utils.process_allgather(np.float32(world.rank))
        assert sum(found) == 1
        client.wait_at_barrier(f"step {step}", 10_000)
        client.key_value_set(f"{step} of {world.rank}", "here")
        assert client.blocking_key_value_get(f"{step} of {1 - world.rank}", 10_000) == "here"
    with ocp.StandardCheckpointer() as saver:
        saver.save(shared_tmp_path / "step", {"a": np.arange(8)})
        saver.wait_until_finished()
        assert saver.restore(shared_tmp_path / "step")["a"].sum() == 28
