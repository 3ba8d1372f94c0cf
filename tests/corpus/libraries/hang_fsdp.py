"""FSDP2 and DTensor: ranks whose programs of collectives differ."""

from __future__ import annotations

import torch
from expectation import hang
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard


def sharded(world, layers: int = 2) -> torch.nn.Module:
    """Return a model whose layers are sharded over all ranks."""
    mesh = init_device_mesh("cpu", (world.size,))
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@hang(
    "finished",
    ranks=2,
    backend="gloo",
    culprits=[1],
    waiting=[0],
    waits_at="model(torch.ones(3, 8))",
)
def test_only_the_primary_evaluates_a_sharded_model(world) -> None:
    """A forward pass gathers parameters, and only one rank does it.

    Source: https://github.com/huggingface/transformers/pull/29980
    """
    model = sharded(world)
    model(torch.ones(2, 8)).sum().backward()
    if world.is_primary:
        model(torch.ones(3, 8))


@hang("finished", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], waits_at="model(batch)")
def test_a_rank_has_no_validation_batch_under_fsdp(world) -> None:
    """A rank whose shard is empty skips the loop in which the others gather parameters.

    Source: https://github.com/Lightning-AI/litgpt/issues/2319
    """
    model = sharded(world)
    batches = [torch.ones(2, 8)] * (0 if world.rank == 3 else 2)
    with torch.no_grad():
        for batch in batches:
            model(batch)


@hang(
    "finished",
    ranks=2,
    backend="gloo",
    culprits=[1],
    waiting=[0],
    waits_at="parameter.full_tensor()",
)
def test_only_the_primary_collects_full_parameters(world) -> None:
    """full_tensor() is a collective, and only the primary calls it.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/17600
    """
    model = sharded(world)
    model(torch.ones(2, 8)).sum().backward()
    for parameter in model.parameters() if world.is_primary else ():
        parameter.full_tensor()


@hang("finished", ranks=3, backend="gloo", culprits=[1, 2], waiting=[0], waits_at="weight.norm().")
def test_norm_of_sharded_gradients_on_the_primary_only(world) -> None:
    """The norm of a DTensor is an all_reduce, logged below `if rank == 0`.

    Source: https://github.com/dvl-tum/center-group/pull/2
    """
    mesh = init_device_mesh("cpu", (world.size,))
    weight = DTensor.from_local(torch.ones(4), mesh, [Shard(0)])
    if world.is_primary:
        print(weight.norm().full_tensor())


def evaluate(model: torch.nn.Module) -> None:
    """Do a forward pass only."""
    with torch.no_grad():
        model(torch.ones(3, 8))


def train(model: torch.nn.Module) -> None:
    """Do a forward and a backward pass."""
    loss = model(torch.ones(2, 8)).sum()
    loss.backward()


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[1],
    by=["mismatch", "proof"],
    outcome=["hung", "failed"],
    where="loss.backward()",
    sides={(1,): "model(torch.ones(3, 8))", (0, 2): "model(torch.ones(2, 8))"},
)
def test_one_rank_evaluates_between_steps_under_fsdp(world) -> None:
    """Its gathers of parameters meet those of the others' next step, until kinds differ.

    Source: https://github.com/huggingface/transformers/pull/29980
    """
    model = sharded(world)
    for step in range(4):
        train(model)
        if step == 1 and world.rank == 1:
            evaluate(model)
