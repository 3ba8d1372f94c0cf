"""FSDP2, DTensor and pipelining: ranks whose programs of collectives differ."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard


def sharded(world, layers: int = 2) -> torch.nn.Module:
    """Return a model whose layers are sharded over all ranks."""
    mesh = init_device_mesh("cpu", (world.size,))
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_only_the_primary_evaluates_a_sharded_model(world) -> None:
    """A forward pass gathers parameters, and only one rank does it.

    Source: https://github.com/huggingface/transformers/pull/29980
    """
    model = sharded(world)
    model(torch.ones(2, 8)).sum().backward()
    if world.is_primary:
        model(torch.ones(2, 8))


@hang("finished", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2])
def test_a_rank_has_no_validation_batch_under_fsdp(world) -> None:
    """A rank whose shard is empty skips the loop in which the others gather parameters.

    Source: https://github.com/Lightning-AI/litgpt/issues/2319
    """
    model = sharded(world)
    batches = [torch.ones(2, 8)] * (0 if world.rank == 3 else 2)
    with torch.no_grad():
        for batch in batches:
            model(batch)


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_only_the_primary_collects_full_parameters(world) -> None:
    """full_tensor() is a collective, and only the primary calls it.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/17600
    """
    model = sharded(world)
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters() if world.is_primary else ():
        parameter.full_tensor()


@hang("finished", ranks=3, backend="gloo", culprits=[1, 2], waiting=[0])
def test_norm_of_sharded_gradients_on_the_primary_only(world) -> None:
    """The norm of a DTensor is an all_reduce, logged below `if rank == 0`.

    Source: https://github.com/dvl-tum/center-group/pull/2
    """
    mesh = init_device_mesh("cpu", (world.size,))
    weight = DTensor.from_local(torch.ones(4), mesh, [Shard(0)])
    if world.is_primary:
        print(weight.norm().full_tensor())


def stage(world, model: torch.nn.Module) -> PipelineStage:
    """Return this rank's stage of a pipeline."""
    return PipelineStage(model, world.rank, world.size, torch.device("cpu"))


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_the_middle_stage_of_a_pipeline_stalls(world) -> None:
    """The stages before and after wait for its activations and gradients.

    Source: https://github.com/pytorch/pytorch/issues/172668
    """
    mine = stage(world, torch.nn.Linear(4, 4))
    schedule = ScheduleGPipe(mine, 3, loss_fn=lambda out, target: (out - target).sum())
    if world.rank == 1:
        time.sleep(FOREVER_S)
    if world.rank == 0:
        schedule.step(torch.ones(6, 4))
    elif world.rank == 2:
        schedule.step(target=torch.ones(6, 4))
    else:
        schedule.step()


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_the_last_stage_does_one_step_less(world) -> None:
    """The first stage waits for gradients of a step that the last never begins.

    Source: https://github.com/pytorch/torchtitan/issues/775
    """
    mine = stage(world, torch.nn.Linear(4, 4))
    schedule = Schedule1F1B(mine, 2, loss_fn=lambda out, target: (out - target).sum())
    for _ in range(3 - world.rank):
        if world.rank == 0:
            schedule.step(torch.ones(4, 4))
        else:
            schedule.step(target=torch.ones(4, 4))


@hang("deadlock", ranks=2, backend="gloo", culprits=[])
def test_both_stages_send_before_they_receive(world) -> None:
    """Neighbouring stages both send large activations first.

    Source: https://github.com/pytorch/pytorch/issues/172668
    """
    other = 1 - world.rank
    dist.send(torch.ones(1 << 22), other)
    dist.recv(torch.empty(1 << 22), other)
