"""What simulated worlds cost: seconds, seconds of CPU and memory, by program and number of ranks.

    python benchmarks/simulated.py --only plain --ranks 8,64,256

CPU is that of pytest and all processes that it has started. Memory is how far the available memory
of the machine fell at most. Both count a run of pytest with one world, and the load average says
what else ran.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

HEAD = """
import pytest, torch, torch.distributed as dist
from torch import nn
"""

PROGRAMS = {
    "plain": """
def test_it(world):
    for _ in range(20):
        x = torch.ones(4)
        dist.all_reduce(x)
        assert x[0] == world.size
""",
    "hang": """
def test_it(world):
    mesh = dist.init_device_mesh("cpu", (4, world.size // 8, 2), mesh_dim_names=("pp", "dp", "tp"))
    dist.all_reduce(torch.ones(4))
    if mesh.get_local_rank("pp") in (0, 3):
        dist.all_reduce(torch.ones(4), group=mesh["pp"].get_group())
    dist.barrier()
""",
    "ddp": """
def test_it(world):
    from torch.nn.parallel import DistributedDataParallel
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 8), float(world.rank))).sum().backward()
        optimizer.step()
""",
    "dcp": """
def test_it(world, shared_tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import distribute_tensor, Shard
    mesh = dist.init_device_mesh("cpu", (world.size,))
    state = {"w": distribute_tensor(torch.arange(world.size * 4.0), mesh, [Shard(0)])}
    dcp.save(state, checkpoint_id=str(shared_tmp_path / "c"))
    again = {"w": distribute_tensor(torch.zeros(world.size * 4), mesh, [Shard(0)])}
    dcp.load(again, checkpoint_id=str(shared_tmp_path / "c"))
    assert torch.equal(again["w"].to_local(), state["w"].to_local())
""",
    "jax": """
def test_it(world):
    import jax
    from jax.experimental import multihost_utils
    jax.distributed.initialize("localhost:1", world.size, world.rank)
    assert multihost_utils.process_allgather(world.rank).tolist() == list(range(world.size))
    assert multihost_utils.broadcast_one_to_all(world.rank) == 0
    multihost_utils.sync_global_devices("done")
""",
    "orbax": """
def test_it(world, shared_tmp_path):
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    jax.distributed.initialize("localhost:1", world.size, world.rank)
    with ocp.StandardCheckpointer() as saver:
        saver.save(shared_tmp_path / "state", {"w": np.arange(4.0)})
""",
    "fsdp": """
def test_it(world):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module)
    mesh = dist.init_device_mesh("cpu", (world.size // 8, 8), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 16)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
}


def main() -> None:
    """Run the programs that the command line names, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--ranks", default="8,64", help="sizes; all run in one run of pytest")
    parser.add_argument("--timeout", type=float, default=600)
    options = parser.parse_args()
    print(f"{'program':8} {'ranks':>6} {'outcome':8} {'world s':>8} {'told s':>7}  startup s")
    for name in options.only:
        _run(name, options.ranks, options.timeout)


def _run(name: str, ranks: str, timeout_s: float) -> None:
    folder = Path(tempfile.mkdtemp(prefix="simulated-"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    marker = f"@pytest.mark.multihost(timeout={timeout_s}, startup_timeout={timeout_s})"
    program = PROGRAMS[name].replace("def test_it", f"{marker}\ndef test_it")
    (folder / "test_it.py").write_text(HEAD + program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "multihost_hangs", "--ranks", ranks]
    command += ["--multihost-backend", "simulated"]
    least = _Least()
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s, used = time.monotonic() - began_s, least.stop()
    lines = (folder / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    for verdict in map(json.loads, lines):
        diagnosis = verdict["diagnosis"] or {"detected_after_s": 0.0}
        print(
            f"{name:8} {verdict['world_size']:6} {verdict['outcome']:8}"
            f" {verdict['duration_s']:8.1f}"
            f" {diagnosis['detected_after_s']:7.1f}  {verdict['startup_s'] or 0:.1f}"
        )
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    load = os.getloadavg()[0]
    print(
        f"{name:8} whole run: {wall_s:.1f} s, {cpu_s:.1f} s of CPU, {used / 1e9:.1f} GB,"
        f" load {load:.1f}, exit code {done.returncode}"
    )
    page = done.stdout.decode(errors="replace")
    (folder / "output.txt").write_text(page)
    print(f"{name:8} output: {folder / 'output.txt'}", flush=True)


class _Least:
    """Samples the available memory until it is stopped."""

    def __init__(self) -> None:
        self._before = self._least = psutil.virtual_memory().available
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_over.wait(0.2):
            self._least = min(self._least, psutil.virtual_memory().available)

    def stop(self) -> int:
        """Return how far the available memory fell at most."""
        self._is_over.set()
        self._thread.join()
        return self._before - self._least


if __name__ == "__main__":
    main()
