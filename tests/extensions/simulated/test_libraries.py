"""Libraries run unmodified on simulated ranks, and compute what they compute on gloo."""

from __future__ import annotations

from typing import Any

import pytest
from runtimes import require

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py

HEAD = """
import pytest
import torch
import torch.distributed as dist
from torch import nn

both = pytest.mark.multihost(ranks=4, backend=["gloo", "simulated"], timeout=100)

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

def batch(rank):
    # Small integers, so that sums are exact in any order.
    return torch.full((2, 8), float(1 + rank % 2))

def flat(module):
    return torch.cat([each.detach().flatten() for each in module.parameters()])
"""

PROGRAMS = (
    HEAD
    + """
@both
def test_ddp(world):
    from torch.nn.parallel import DistributedDataParallel
    net = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        net(batch(world.rank)).sum().backward()
        optimizer.step()
    found = flat(net)
    every = [torch.zeros_like(found) for _ in range(4)]
    dist.all_gather(every, found)
    assert all(torch.equal(each, found) for each in every)
    if world.backend == "simulated":
        assert torch.isfinite(found).all()

@both
def test_zero(world):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        net(batch(world.rank)).sum().backward()
        optimizer.step()
    found = flat(net)
    every = [torch.zeros_like(found) for _ in range(4)]
    dist.all_gather(every, found)
    assert all(torch.equal(each, found) for each in every)

@both
def test_fsdp2_and_tp(world):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module)
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = model()
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 8)).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    assert torch.isfinite(loss)

@both
def test_fsdp1(world):
    from torch.distributed.fsdp import FullyShardedDataParallel
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    net(batch(world.rank)).sum().backward()
    assert all(each.grad is None or torch.isfinite(each.grad).all() for each in net.parameters())

@both
def test_checkpoint(world, shared_tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = dist.init_device_mesh("cpu", (4,))
    state = {"w": distribute_tensor(torch.arange(16.0), mesh, [Shard(0)]), "step": 3}
    dcp.save(state, checkpoint_id=str(shared_tmp_path / "c"))
    again = {"w": distribute_tensor(torch.zeros(16), mesh, [Shard(0)]), "step": 0}
    dcp.load(again, checkpoint_id=str(shared_tmp_path / "c"))
    assert torch.equal(again["w"].full_tensor(), torch.arange(16.0))
    assert again["step"] == 3

@both
def test_pipeline(world):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    torch.manual_seed(world.rank)
    stage = PipelineStage(nn.Linear(8, 8), world.rank, 4, torch.device("cpu"))
    loss = lambda out, target: ((out - target) ** 2).mean()
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)
    x, y, losses = torch.ones(16, 8), torch.zeros(16, 8), []
    if world.rank == 0:
        schedule.step(x)
    elif world.rank == 3:
        schedule.step(target=y, losses=losses)
        assert len(losses) == 8
    else:
        schedule.step()
"""
)

ACCELERATE = (
    HEAD
    + """
import accelerate

@both
def test_accelerate(world):
    accelerator = accelerate.Accelerator(cpu=True)
    net, optimizer = accelerator.prepare(model(), torch.optim.SGD(model().parameters(), lr=0.1))
    accelerator.backward(net(batch(world.rank)).sum())
    found = accelerator.gather(torch.tensor([world.rank]))
    assert found.tolist() == [0, 1, 2, 3]
    accelerator.wait_for_everyone()
"""
)

MEGATRON = """
import pytest
import torch
import torch.distributed as dist

pytest.importorskip("megatron.core")

@pytest.mark.multihost(ranks=16, backend="simulated")
def test_groups(world):
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=4)
    x = torch.ones(1)
    dist.all_reduce(x, group=parallel_state.get_tensor_model_parallel_group())
    dist.all_reduce(x, group=parallel_state.get_pipeline_model_parallel_group())
    dist.all_reduce(x, group=parallel_state.get_data_parallel_group())
    assert x.item() == 16.0
"""


@pytest.mark.program(PROGRAMS)
def test_torchs_own_libraries_run(worlds: Worlds) -> None:
    """DDP, ZeRO, FSDP1, FSDP2 with tensor parallelism, checkpoints and a pipeline."""
    worlds.run.assert_outcomes(passed=12)


@pytest.mark.program(ACCELERATE)
def test_accelerate_runs(worlds: Worlds) -> None:
    """With DDP, and objects gathered."""
    worlds.run.assert_outcomes(passed=2)


@pytest.mark.program(MEGATRON)
def test_the_groups_of_megatron_are_right(worlds: Worlds) -> None:
    """Two tensor-parallel, four pipeline and two data-parallel ranks."""
    require("megatron.core")
    worlds.run.assert_outcomes(passed=1)
