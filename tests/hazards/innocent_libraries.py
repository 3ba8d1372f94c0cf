"""Training and checkpoints as torch and orbax do them: many groups and works at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from expectation import innocent
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from pytest_multihost import World

STEPS = 3


def model() -> torch.nn.Sequential:
    """Return a few layers, the same on all ranks."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    return torch.nn.Sequential(*layers)


def train(trained: torch.nn.Module) -> None:
    """Take a few steps."""
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        trained(torch.ones(4, 8)).sum().backward()
        optimizer.step()


@innocent(ranks=3)
def test_data_parallel(world: World) -> None:
    """Small buckets, and steps without a reduction."""
    trained = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    train(trained)
    with trained.no_sync():
        trained(torch.ones(4, 8)).sum().backward()
    train(trained)


@innocent(ranks=2)
def test_sharded_layers(world: World) -> None:
    """FSDP2 gathers each layer ahead, and scatters its gradients behind."""
    trained = model()
    for layer in trained:
        fully_shard(layer)
    train(fully_shard(trained))


@innocent(ranks=4)
def test_sharded_and_replicated(world: World) -> None:
    """FSDP2 on a mesh of two by two: scattered in one dimension, reduced in the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    trained = model()
    for layer in trained:
        fully_shard(layer, mesh=mesh)
    train(fully_shard(trained, mesh=mesh))


@innocent(ranks=2)
def test_tensor_parallel(world: World) -> None:
    """Columns, then rows."""
    mesh = init_device_mesh("cpu", (2,))
    train(parallelize_module(model(), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}))


@innocent(ranks=4)
def test_tensor_and_data_parallel(world: World) -> None:
    """Tensor parallel in one dimension of a mesh, FSDP2 in the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    trained = parallelize_module(
        model(), mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()}
    )
    train(fully_shard(trained, mesh=mesh["data"]))


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B], ids=lambda each: each.__name__)
@innocent(ranks=3)
def test_a_pipeline_of_stages(world: World, schedule: type) -> None:
    """Activations to the next stage, gradients to the one before, in batches of transfers."""
    stage = PipelineStage(model()[world.rank], world.rank, 3, torch.device("cpu"))
    run = schedule(stage, 6, loss_fn=lambda out, target: (out - target).sum())
    for _ in range(2):
        if world.rank == 0:
            run.step(torch.ones(6, 8))
        elif world.rank == 2:
            run.step(target=torch.ones(6, 8))
        else:
            run.step()


@pytest.mark.parametrize(
    "schedule",
    [ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble],
    ids=lambda each: each.__name__,
)
@innocent(ranks=2)
def test_a_pipeline_that_comes_round_again(world: World, schedule: type) -> None:
    """Two stages on each rank: a rank sends to itself's neighbour in both directions."""
    layers = [torch.nn.Linear(8, 8) for _ in range(4)]
    stages = [
        PipelineStage(layers[number], number, 4, torch.device("cpu"))
        for number in (world.rank, world.rank + 2)
    ]
    run = schedule(stages, 4, loss_fn=lambda out, target: (out - target).sum())
    for _ in range(2):
        if world.rank == 0:
            run.step(torch.ones(4, 8))
        else:
            run.step(target=torch.ones(4, 8))


@innocent(ranks=2)
def test_a_distributed_checkpoint(world: World, shared_tmp_path: Path) -> None:
    """Saved, saved in the background, and loaded."""
    state = {"model": model().state_dict()}
    checkpoint.save(state, checkpoint_id=str(shared_tmp_path / "one"))
    checkpoint.async_save(state, checkpoint_id=str(shared_tmp_path / "two")).result()
    checkpoint.load(state, checkpoint_id=str(shared_tmp_path / "two"))
    dist.barrier()


@innocent(ranks=2, backend="jax")
def test_orbax(world: World, shared_tmp_path: Path) -> None:
    """Saved and restored, now and in the background."""
    import numpy as np
    import orbax.checkpoint as ocp

    state = {"x": np.arange(8.0)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as saver:
        saver.save(shared_tmp_path / "one", state)
        saver.restore(shared_tmp_path / "one")
    with ocp.CheckpointManager(shared_tmp_path / "many") as manager:
        for step in range(2):
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        manager.restore(1, args=ocp.args.StandardRestore(state))
