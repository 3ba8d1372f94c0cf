"""Worlds on GPUs that are slow and fine.

The ranks share the GPUs that there are; without any, these programs are left out.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from expectation import innocent
from hang_nccl import compute, connect, ones


@innocent(ranks=4, backend="nccl")
def test_a_rank_sleeps_for_five_seconds(world) -> None:
    """The others need the value of an all_reduce.

    Source: field report class: a rank that reads a checkpoint
    """
    connect()
    if world.rank == 1:
        time.sleep(5)
    total = ones()
    dist.all_reduce(total)
    assert total.sum().item() == 16


@innocent(ranks=4, backend="nccl")
def test_a_gpu_computes_before_an_all_reduce(world) -> None:
    """All ranks have launched it and wait for its value; one GPU has other work first.

    Source: field report class: an expert that gets most of the tokens
    """
    connect()
    if world.rank == 1:
        compute(4)
    total = ones()
    dist.all_reduce(total)
    assert total.sum().item() == 16


@innocent(ranks=2, backend="nccl")
def test_a_rank_waits_for_its_own_work_between_two_groups(world) -> None:
    """It has launched in one group, computes, and comes to the other one later.

    Source: field report class: overlap of communication with computation
    """
    again = dist.new_group([0, 1])
    connect(None, again)
    one, other = ones(), ones()
    if world.rank == 0:
        work = dist.all_reduce(one, async_op=True)
        compute(4)
        assert ones().sum().item()
        dist.all_reduce(other, group=again)
        work.wait()
    else:
        dist.all_reduce(other, group=again)
        assert other.sum().item()
        dist.all_reduce(one)
    assert one.sum().item() == 8


@innocent(ranks=4, backend="nccl")
def test_operations_run_ahead(world) -> None:
    """Forty operations are in flight behind one that waits for a slow rank.

    Source: field report class: gradients that are reduced without a wait
    """
    connect()
    if world.rank == 2:
        time.sleep(4)
    for _ in range(40):
        dist.all_reduce(ones())
    torch.cuda.synchronize()


@innocent(ranks=4, backend="nccl")
def test_all_kinds_of_operations(world) -> None:
    """Their values are right though the ranks share a GPU.

    Source: none: it shows that the backend works
    """
    total = ones()
    dist.all_reduce(total)
    assert total.tolist() == [4.0] * 4
    gathered = [torch.empty(1, device="cuda") for _ in range(4)]
    dist.all_gather(gathered, ones(1) * world.rank)
    assert [each.item() for each in gathered] == [0, 1, 2, 3]
    sent, received = torch.arange(4.0, device="cuda"), ones()
    dist.all_to_all_single(received, sent)
    assert received.tolist() == [float(world.rank)] * 4
    batch = [
        dist.P2POp(dist.isend, ones(1) * world.rank, (world.rank + 1) % 4),
        dist.P2POp(dist.irecv, received[:1], (world.rank - 1) % 4),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert received[0].item() == (world.rank - 1) % 4
    objects: list[object] = [None] * 4
    dist.all_gather_object(objects, {"rank": world.rank})
    assert objects[3] == {"rank": 3}
    dist.barrier()
