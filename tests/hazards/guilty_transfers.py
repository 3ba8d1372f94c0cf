"""Sends between two ranks that both send first: gloo matches them, a stream of NCCL does not."""

from __future__ import annotations

import torch
import torch.distributed as dist
from expectation import guilty

from pytest_multihost import World


@guilty(
    "buffered",
    "dist.isend(mine",
    like="NVIDIA/nccl issue 479: both ranks send first",
    confirmed=True,
)
def test_both_send_first(world: World) -> None:
    """An exchange without an order."""
    mine, theirs, peer = torch.ones(2), torch.empty(2), 1 - world.rank
    sending = dist.isend(mine, dst=peer)
    dist.recv(theirs, src=peer)
    sending.wait()


@guilty(
    "buffered",
    "dist.isend(activation",
    like="NVIDIA/Megatron-LM issue 5100: order of sends and receives between stages",
    confirmed=True,
)
def test_stages_that_send_to_each_other(world: World) -> None:
    """Activations and gradients cross between two stages."""
    activation, gradient = torch.ones(4), torch.empty(4)
    for _ in range(2):
        works = [
            dist.isend(activation, dst=1 - world.rank, tag=1),
            dist.irecv(gradient, src=1 - world.rank, tag=1),
        ]
        for work in works:
            work.wait()


@guilty("buffered", "dist.isend(halo", ranks=4, confirmed=True)
def test_a_halo_of_neighbours(world: World) -> None:
    """Each pair of neighbours exchanges its edges, and both send first."""
    halo, edge = torch.ones(1), torch.empty(1)
    sends, peers = [], [world.rank ^ 1, world.rank ^ 2]
    for peer in peers:
        sends.append(  # noqa: PERF401 - one launch a line
            dist.isend(halo, dst=peer)
        )
    for peer in peers:
        dist.recv(edge, src=peer)
    for send in sends:
        send.wait()
