"""Trainings on simulated ranks have the losses that they have on gloo.

Sums of floating-point numbers may differ in their last bit: gloo adds in another order.
"""

from __future__ import annotations

from typing import Any

import pytest
from runtimes import require

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py

HEAD = """
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

both = pytest.mark.multihost(ranks=4, backend=["gloo", "simulated"], timeout=200)
FOLDER = Path(os.environ.get("LOSSES") or Path(__file__).parent)

def keep(name, world, losses):
    path = FOLDER / f"{name}-{world.backend}-{world.rank}.json"
    path.write_text(json.dumps([float(each) for each in losses]))

def kept(name, backend):
    paths = [FOLDER / f"{name}-{backend}-{rank}.json" for rank in range(4)]
    found = [json.loads(each.read_text()) for each in paths]
    assert sum(found, [])
    return [torch.tensor(each, dtype=torch.float64) for each in found]

def compare(name):
    for real, simulated in zip(kept(name, "gloo"), kept(name, "simulated"), strict=True):
        torch.testing.assert_close(simulated, real, rtol=1e-6, atol=1e-9)

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

def batches(rank):
    torch.manual_seed(rank)
    return [torch.randn(4, 8) for _ in range(4)]
"""

TORCH = (
    HEAD
    + """
def train(net, batches):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    losses = []
    for each in batches:
        optimizer.zero_grad()
        loss = (net(each) ** 2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses

@both
def test_ddp(world):
    from torch.nn.parallel import DistributedDataParallel
    net = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    keep("ddp", world, train(net, batches(world.rank)))

@both
def test_zero(world):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.05)
    losses = []
    for each in batches(world.rank):
        optimizer.zero_grad()
        loss = (net(each) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    keep("zero", world, losses)

@both
def test_fsdp2_and_tp(world):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module)
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = model()
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    keep("fsdp2_and_tp", world, train(net, batches(mesh.get_local_rank("dp"))))

@both
def test_fsdp1(world):
    from torch.distributed.fsdp import FullyShardedDataParallel
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    keep("fsdp1", world, train(net, batches(world.rank)))

def pipeline(name, world, schedule_of, stages_of):
    from torch.distributed.pipelining import PipelineStage
    def part(index, count):
        torch.manual_seed(index)
        return PipelineStage(nn.Linear(8, 8), index, count, torch.device("cpu"))
    loss = lambda out, target: ((out - target) ** 2).mean()
    numbers, count = stages_of(world.rank)
    stages = [part(each, count) for each in numbers]
    schedule = schedule_of(stages, n_microbatches=8, loss_fn=loss)
    optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=0.1)
    every = []
    for _ in range(2):
        optimizer.zero_grad()
        given, losses = {}, []
        if count - 1 in numbers:
            given = {"target": torch.zeros(16, 8), "losses": losses}
        schedule.step(*([torch.ones(16, 8)] if 0 in numbers else []), **given)
        optimizer.step()
        every += losses + [p.grad.norm() for s in stages for p in s.submod.parameters()]
    keep(name, world, every)

@both
def test_1f1b(world):
    from torch.distributed.pipelining import Schedule1F1B
    pipeline("1f1b", world, lambda s, **k: Schedule1F1B(s[0], **k), lambda r: ([r], 4))

@both
def test_interleaved(world):
    from torch.distributed.pipelining import ScheduleInterleaved1F1B
    pipeline("interleaved", world, ScheduleInterleaved1F1B, lambda r: ([r, r + 4], 8))

@both
def test_zbv(world):
    from torch.distributed.pipelining import ScheduleZBVZeroBubble
    pipeline("zbv", world, ScheduleZBVZeroBubble, lambda r: ([r, 7 - r], 8))

@pytest.mark.parametrize(
    "name", ["ddp", "zero", "fsdp2_and_tp", "fsdp1", "1f1b", "interleaved", "zbv"])
def test_the_losses_agree(name):
    compare(name)
"""
)

ACCELERATE = (
    HEAD
    + """
import accelerate

@both
def test_accelerate(world):
    accelerator = accelerate.Accelerator(cpu=True)
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.05))
    losses = []
    for each in batches(world.rank):
        optimizer.zero_grad()
        loss = (net(each) ** 2).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses += accelerator.gather(loss.detach()).tolist()
    keep("accelerate", world, losses)

def test_the_losses_agree():
    compare("accelerate")
"""
)

MEGATRON = (
    HEAD
    + """
pytest.importorskip("megatron.core")

@both
def test_megatron(world):
    from megatron.core import ModelParallelConfig, parallel_state, tensor_parallel
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    config = ModelParallelConfig(tensor_model_parallel_size=2, use_cpu_initialization=True)
    init = lambda weight: nn.init.normal_(weight, std=0.1)
    torch.manual_seed(0)
    settings = {"config": config, "init_method": init, "bias": True}
    up = tensor_parallel.ColumnParallelLinear(8, 16, gather_output=False, **settings)
    down = tensor_parallel.RowParallelLinear(
        16, 8, input_is_parallel=True, skip_bias_add=False, **settings)
    parameters = [*up.parameters(), *down.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    group = parallel_state.get_data_parallel_group()
    losses = []
    for each in batches(parallel_state.get_data_parallel_rank()):
        optimizer.zero_grad()
        hidden, _ = up(each)
        out, _ = down(torch.tanh(hidden))
        loss = (out ** 2).mean()
        loss.backward()
        for each in parameters:
            dist.all_reduce(each.grad, group=group)
        optimizer.step()
        losses.append(loss.item())
    keep("megatron", world, losses)

def test_the_losses_agree():
    compare("megatron")
"""
)

TRAINER = (
    HEAD
    + """
transformers = pytest.importorskip("transformers")

@both
def test_trainer(world, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    torch.manual_seed(0)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    made = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 32, (8,), generator=made) for _ in range(48)]
    rows = [{"input_ids": each, "labels": each} for each in rows]
    settings = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=2, max_steps=4,
        report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, ddp_backend="gloo",
        seed=3)
    trainer = Trainer(net, settings, train_dataset=rows)
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    keep("trainer", world, losses if world.rank == 0 else [0.0])

def test_the_losses_agree():
    compare("trainer")
"""
)

LIGHTNING = (
    HEAD
    + """
lightning = pytest.importorskip("lightning")

@both
def test_lightning(world, tmp_path):
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy
    seen = []
    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()
        def training_step(self, batch, index):
            loss = (self.net(batch) ** 2).mean()
            self.log("loss", loss, sync_dist=True)
            seen.append(loss.item())
            return loss
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.05)
    strategy = DDPStrategy(
        cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=4, strategy=strategy, max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, num_sanity_val_steps=0, default_root_dir=tmp_path)
    rows = torch.cat(batches(world.rank))
    trainer.fit(Net(), torch.utils.data.DataLoader(rows, batch_size=4))
    keep("lightning", world, seen)

def test_the_losses_agree():
    compare("lightning")
"""
)


STEP = (
    HEAD
    + """
pytest.importorskip("megatron.core")
from megatron.core import ModelParallelConfig, parallel_state, tensor_parallel
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

PP, TP, DP = 4, 4, 4

@pytest.mark.multihost(ranks=PP * TP * DP, backend="simulated", timeout=200)
def test_a_step(world):
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=TP, pipeline_model_parallel_size=PP)
    stage_number = parallel_state.get_pipeline_model_parallel_rank()
    config = ModelParallelConfig(tensor_model_parallel_size=TP, use_cpu_initialization=True)
    init = lambda weight: nn.init.normal_(weight, std=0.3)
    torch.manual_seed(stage_number)
    settings = {"config": config, "init_method": init, "bias": True}

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = tensor_parallel.ColumnParallelLinear(
                8, 16, gather_output=False, **settings)
            self.down = tensor_parallel.RowParallelLinear(
                16, 8, input_is_parallel=True, skip_bias_add=False, **settings)

        def forward(self, x):
            hidden, _ = self.up(x)
            out, _ = self.down(torch.tanh(hidden))
            return x + out

    block = Block()
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.01)
    stage = PipelineStage(
        block, stage_number, PP, torch.device("cpu"),
        group=parallel_state.get_pipeline_model_parallel_group())
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=nn.functional.mse_loss)
    torch.manual_seed(100 + parallel_state.get_data_parallel_rank())
    x, y, losses, mean = torch.randn(16, 8), torch.randn(16, 8), [], []
    for _ in range(2):
        optimizer.zero_grad()
        losses.clear()
        if parallel_state.is_pipeline_first_stage():
            schedule.step(x)
        elif parallel_state.is_pipeline_last_stage():
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        for each in block.parameters():
            dist.all_reduce(each.grad, group=parallel_state.get_data_parallel_group())
            each.grad /= DP
        optimizer.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.all_reduce(loss, group=parallel_state.get_data_parallel_group())
        mean.append(loss.item() / DP)
    if parallel_state.is_pipeline_last_stage():
        assert mean[1] < mean[0]  # the mean over all replicas falls
        every = [torch.zeros(2) for _ in range(TP)]
        group = parallel_state.get_tensor_model_parallel_group()
        dist.all_gather(every, torch.tensor(mean), group=group)
        assert all(torch.equal(each, every[0]) for each in every)
    dist.barrier()
"""
)


@pytest.mark.program(TORCH)
def test_torchs_own_libraries_compute_the_same_losses(worlds: Worlds) -> None:
    """DDP, ZeRO, FSDP1, FSDP2 with tensor parallelism, and three schedules of pipelines."""
    worlds.run.assert_outcomes(passed=21)


@pytest.mark.program(ACCELERATE)
def test_accelerate_computes_the_same_losses(worlds: Worlds) -> None:
    """With clipped gradients and gathered losses."""
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.program(MEGATRON)
def test_megatron_computes_the_same_losses(worlds: Worlds) -> None:
    """A column-parallel and a row-parallel layer, on two data-parallel ranks each."""
    require("megatron.core")
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.program(TRAINER)
def test_the_trainer_of_transformers_computes_the_same_losses(worlds: Worlds) -> None:
    """Four steps of a small GPT-2."""
    require("transformers")
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.program(LIGHTNING)
def test_lightning_computes_the_same_losses(worlds: Worlds) -> None:
    """Two epochs with DDP."""
    require("lightning")
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.program(STEP)
def test_two_steps_of_a_training_with_three_axes(worlds: Worlds) -> None:
    """64 ranks: four stages, four tensor-parallel and four data-parallel ranks."""
    require("megatron.core")
    worlds.run.assert_outcomes(passed=1)
