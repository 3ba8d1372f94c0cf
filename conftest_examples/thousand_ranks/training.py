"""One training step with FSDP2, tensor parallelism and a pipeline, and a bug in its last line.

The first and the last stage hold the same embedding, so its gradients are added up. That is done in
the group of the whole pipeline, by these two stages only: right for two stages, wrong for four.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH = 8


def make_mesh(stages):
    """Arrange all ranks: `stages` of a pipeline, pairs of tensor-parallel ranks, the rest data."""
    data = dist.get_world_size() // (2 * stages)
    return dist.init_device_mesh("cpu", (stages, data, 2), mesh_dim_names=("pp", "dp", "tp"))


def make_stage(mesh):
    """Return one stage: its layers are split over `tp`, and sharded over `dp`."""
    torch.manual_seed(mesh.get_local_rank("pp"))
    stage = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    parallelize_module(stage, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(stage, mesh=mesh["dp"])


def train_step(mesh, stage, *, reduce_embedding):
    """Run one batch through the pipeline, forth and back."""
    rank, group = mesh.get_local_rank("pp"), mesh["pp"].get_group()
    last = mesh["pp"].size() - 1
    hidden = torch.ones(2, WIDTH)
    if rank > 0:
        dist.recv(hidden, group=group, group_src=rank - 1)
    hidden.requires_grad_()
    result = stage(hidden)
    if rank < last:
        dist.send(result.detach(), group=group, group_dst=rank + 1)
        gradient = torch.empty_like(result)
        dist.recv(gradient, group=group, group_src=rank + 1)
        result.backward(gradient)
    else:
        result.square().mean().backward()
    if rank > 0:
        dist.send(hidden.grad, group=group, group_dst=rank - 1)
    reduce_embedding(mesh, torch.ones(WIDTH))
    dist.barrier()


def reduce_embedding(mesh, gradient):
    """Add up the embedding's gradients of the first and the last stage."""
    if mesh.get_local_rank("pp") in (0, mesh["pp"].size() - 1):
        dist.all_reduce(gradient, group=mesh["pp"].get_group())


def reduce_embedding_everywhere(mesh, gradient):
    """The same, mended: every stage takes part, those in the middle with zeros."""
    if mesh.get_local_rank("pp") not in (0, mesh["pp"].size() - 1):
        gradient.zero_()
    dist.all_reduce(gradient, group=mesh["pp"].get_group())
