"""Sends that end only because gloo buffers them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from expectation import guilty

from pytest_multihost import World


@guilty(
    "buffered",
    "dist.send(mine",
    like="NVIDIA/nccl issue 479: both ranks send first",
    confirmed=True,
)
def test_both_send_first(world: World) -> None:
    """An exchange without an order."""
    mine, theirs, peer = torch.ones(2), torch.empty(2), 1 - world.rank
    dist.send(mine, dst=peer)
    dist.recv(theirs, src=peer)


@guilty(
    "buffered",
    "dist.send(edge",
    ranks=3,
    like="NVIDIA/Megatron-LM issue 5100: order of sends and receives in a ring",
    confirmed=True,
)
def test_a_ring_in_which_all_send_first(world: World) -> None:
    """A halo exchange: to the right, then from the left."""
    edge, halo = torch.ones(1), torch.empty(1)
    dist.send(edge, dst=(world.rank + 1) % world.size)
    dist.recv(halo, src=(world.rank - 1) % world.size)


@guilty("buffered", "dist.send(x", "dist.barrier()", confirmed=True)
def test_a_receive_behind_a_barrier(world: World) -> None:
    """The receiver enters the barrier that the sender is to reach."""
    x = torch.ones(1)
    if world.rank == 0:
        dist.send(x, dst=1)
        dist.barrier()
    else:
        dist.barrier()
        dist.recv(x, src=0)


@guilty("buffered", "dist.send(activation", confirmed=True)
def test_stages_that_send_to_each_other(world: World) -> None:
    """Activations and gradients cross between two stages."""
    activation, gradient = torch.ones(4), torch.empty(4)
    for _ in range(2):
        dist.send(activation, dst=1 - world.rank, tag=1)
        dist.recv(gradient, src=1 - world.rank, tag=1)
