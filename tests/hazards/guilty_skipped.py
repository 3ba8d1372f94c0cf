"""A member of a group that did not enter the last collective of the others."""

from __future__ import annotations

import torch
import torch.distributed as dist
from expectation import guilty

from pytest_multihost import World


@guilty(
    "skipped", "dist.broadcast(weights", like="LBANN/lbann issue 34: early stopping of some ranks"
)
def test_early_stop_of_one_rank(world: World) -> None:
    """Rank 1 leaves the loop one step before rank 0, which only sends."""
    weights = torch.ones(2)
    for step in range(4):
        if world.rank == 1 and step == 3:
            break
        dist.broadcast(weights, src=0)


@guilty(
    "skipped", "dist.reduce(loss", like="ai2cm/ace pull 1407: ranks leave the loop at other batches"
)
def test_one_batch_more(world: World) -> None:
    """Rank 1 has a batch more, and its share of the sum is sent to nobody."""
    for _ in range(2 + world.rank):
        loss = torch.ones(1)
        dist.reduce(loss, dst=0)


@guilty("skipped", "async_op=True", like="NVIDIA/nccl issue 719: the root does not broadcast")
def test_an_asynchronous_operation_of_one_rank(world: World) -> None:
    """Launched on rank 0 alone, and nobody waits for it."""
    x = torch.ones(2)
    dist.all_reduce(x)
    if world.rank == 0:
        dist.broadcast(x, src=0, async_op=True).wait()


@guilty("skipped", "dist.broadcast(table", ranks=3)
def test_a_group_that_one_member_never_uses(world: World) -> None:
    """Rank 2 is a member and reads the file instead."""
    group = dist.new_group([0, 1, 2])
    table = torch.ones(3)
    if world.rank < 2:
        dist.broadcast(table, src=0, group=group)
