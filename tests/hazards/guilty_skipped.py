"""A member of a group that did not enter what the others launched, and nobody waited for."""

from __future__ import annotations

import torch
import torch.distributed as dist
from expectation import guilty

from pytest_multihost import World

KEPT: list[object] = []


@guilty(
    "skipped",
    "dist.broadcast(weights",
    like="LBANN/lbann issue 34: early stopping of some ranks",
    also=["unwaited"],
)
def test_early_stop_of_one_rank(world: World) -> None:
    """Rank 1 leaves the loop one step before rank 0, whose last send has no receiver."""
    weights = torch.ones(2)
    for step in range(4):
        if world.rank == 1 and step == 3:
            break
        KEPT.append(work := dist.broadcast(weights, src=0, async_op=True))
        if step < 3:
            work.wait()


@guilty(
    "skipped",
    "KEPT.append(dist.reduce(loss",
    like="ai2cm/ace pull 1407: ranks leave the loop at other batches",
    also=["unwaited"],
)
def test_one_batch_more(world: World) -> None:
    """Rank 1 has a batch more, and its share of the sum is for nobody."""
    for _ in range(2 + world.rank):
        loss = torch.ones(1)
        KEPT.append(dist.reduce(loss, dst=0, async_op=True))
    for work in KEPT[:2]:
        work.wait()  # type: ignore[attr-defined]


@guilty(
    "skipped",
    "async_op=True",
    like="NVIDIA/nccl issue 719: one rank is in a broadcast that the root does not call",
    also=["unwaited"],
)
def test_a_broadcast_without_its_root(world: World) -> None:
    """Launched by the rank that is to receive, and dropped."""
    x = torch.ones(2)
    dist.all_reduce(x)
    if world.rank == 1:
        KEPT.append(dist.broadcast(x, src=0, async_op=True))


@guilty("skipped", "dist.barrier(group=group", ranks=3, also=["unwaited"])
def test_a_group_that_one_member_never_uses(world: World) -> None:
    """Rank 2 is a member and does not know."""
    group = dist.new_group([0, 1, 2])
    if world.rank < 2:
        KEPT.append(dist.barrier(group=group, async_op=True))


@guilty(
    "skipped",
    "dist.isend(x",
    like="pytorch/pytorch issue 108378: an isend whose irecv is never issued",
    also=["unwaited"],
)
def test_a_send_that_nobody_receives(world: World) -> None:
    """The receiver has stopped listening."""
    x = torch.ones(3)
    if world.rank == 0:
        KEPT.append(dist.isend(x, dst=1))
