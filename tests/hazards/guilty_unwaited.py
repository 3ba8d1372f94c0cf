"""Asynchronous operations that nobody waits for."""

from __future__ import annotations

import torch
import torch.distributed as dist
from expectation import guilty

from pytest_multihost import World

KEPT: list[object] = []


@guilty(
    "unwaited",
    "dist.isend",
    like="pytorch/pytorch issue 129442: isend in a loop, its works dropped",
)
def test_a_send_into_the_blue(world: World) -> None:
    """The sender keeps the work, and never looks at it."""
    x = torch.ones(3)
    if world.rank == 0:
        KEPT.append(dist.isend(x, dst=1))
    else:
        dist.recv(x, src=0)
    dist.barrier()


@guilty("unwaited", "dist.all_reduce(loss, async_op=True)", like="pytorch/pytorch issue 30723")
def test_a_logged_loss(world: World) -> None:
    """Averaged for the log, in the background, and never looked at."""
    loss = torch.ones(1)
    dist.all_reduce(loss, async_op=True)
    dist.barrier()


@guilty("unwaited", "KEPT.append(dist.all_reduce(gradient, async_op=True))")
def test_works_in_a_list_that_nobody_reads(world: World) -> None:
    """A hook appends; the step forgets to wait."""
    for _ in range(3):
        gradient = torch.ones(2)
        KEPT.append(dist.all_reduce(gradient, async_op=True))
    dist.barrier()


@guilty("unwaited", "work = dist.all_gather")
def test_only_the_last_bucket_is_waited_for(world: World) -> None:
    """The variable holds the last work alone."""
    parts = [torch.ones(2) for _ in range(world.size)]
    for _ in range(3):
        work = dist.all_gather(parts, torch.ones(2), async_op=True)
    work.wait()


@guilty("unwaited", "dist.broadcast(weights, src=0, async_op=True)")
def test_weights_on_their_way_at_the_end(world: World) -> None:
    """The broadcast may be under way as the test ends."""
    weights = torch.ones(5)
    works = [dist.broadcast(weights, src=0, async_op=True)]
    assert len(works) == 1
