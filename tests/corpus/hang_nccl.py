"""Hangs on GPUs, where a rank waits for an operation long after its call has returned.

The ranks share the GPUs that there are; without any, these programs are left out.
"""

from __future__ import annotations

import os
import threading
import time

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.nn.parallel import DistributedDataParallel

_CYCLES = 1_500_000_000
"""About a second on a GPU that computes nothing else."""


def ones(count: int = 4) -> torch.Tensor:
    """Return a tensor on the rank's GPU."""
    return torch.ones(count, device="cuda")


def connect(*groups: dist.ProcessGroup | None) -> None:
    """Let all groups connect, and load the kernels that the programs use.

    CUDA loads a kernel when it is first used, and waits for the whole GPU then.
    """
    for each in groups or (None,):
        dist.all_reduce(ones(), group=each)
    assert ones().sum().item()
    assert ones(1) > 0
    compute(0.001)
    torch.cuda.synchronize()


def compute(seconds: float) -> None:
    """Keep the GPU at work. This returns at once."""
    for _ in range(max(1, round(seconds))):
        torch.cuda._sleep(round(min(1, seconds) * _CYCLES))


@hang(
    "straggler",
    ranks=4,
    backend="nccl",
    culprits=[1],
    waiting=[0, 2, 3],
    where="time.sleep(FOREVER_S)",
)
def test_a_value_is_needed_of_an_all_reduce(world) -> None:
    """Three ranks have launched the fourth all_reduce and need its value; one reads a file.

    Source: field report class: a logged loss that is reduced first
    """
    for _ in range(3):
        dist.all_reduce(ones())
    if world.rank == 1:
        time.sleep(FOREVER_S)
    loss = ones()
    dist.all_reduce(loss)
    print(loss[0].item())


@hang("straggler", ranks=4, backend="nccl", culprits=[1], waiting=[0, 2, 3])
def test_many_operations_are_in_flight(world) -> None:
    """The others run ahead by twenty operations, and wait for the whole GPU.

    Source: field report class: gradients that are reduced without a wait
    """
    for step in range(60):
        if step == 40 and world.rank == 1:
            time.sleep(FOREVER_S)
        dist.all_reduce(ones())
    torch.cuda.synchronize()


@hang("straggler", ranks=4, backend="nccl", culprits=[2], waiting=[0, 1, 3])
def test_a_rank_stays_away_from_a_barrier(world) -> None:
    """A barrier keeps the calling thread itself.

    Source: https://github.com/pytorch/pytorch/issues/88103
    """
    if world.rank == 2:
        time.sleep(FOREVER_S)
    dist.barrier()


@hang("straggler", ranks=4, backend="nccl", culprits=[3], waiting=[0, 1, 2])
def test_a_condition_needs_a_value(world) -> None:
    """The truth of a tensor is asked for, which copies it from the GPU.

    Source: field report class: a step that is skipped if a reduced flag is set
    """
    connect()
    if world.rank == 3:
        time.sleep(FOREVER_S)
    overflow = ones(1)
    dist.all_reduce(overflow)
    if overflow > 3:
        print("skipped")


@hang("straggler", ranks=4, backend="nccl", culprits=[0], waiting=[1, 2, 3])
def test_an_asynchronous_operation_is_waited_for(world) -> None:
    """A wait for a work only makes the stream wait; the copy to the host waits in truth.

    Source: field report class: overlap of communication with computation
    """
    connect()
    if world.rank == 0:
        time.sleep(FOREVER_S)
    total = ones()
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    print(total.cpu())


@hang("straggler", ranks=4, backend="nccl", culprits=[1], waiting=[0, 2, 3], by=["deadline"])
def test_ddp_reduces_in_the_backward_pass(world) -> None:
    """C++ code launches the all_reduce, and the loss is what the others wait for.

    Source: field report class: a data loader that stalls on one rank
    """
    connect()
    model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    for step in range(5):
        if step == 3 and world.rank == 1:
            time.sleep(FOREVER_S)
        loss = model(ones(64)).sum()
        loss.backward()
        print(loss.item())


@hang("straggler", ranks=4, backend="nccl", culprits=[2], waiting=[0, 1, 3], by=["deadline"])
def test_a_rank_waits_for_a_lock(world) -> None:
    """Such a wait looks like one for the GPU, so only the deadline tells.

    Source: field report class: a queue that nobody fills
    """
    connect()
    if world.rank == 2:
        threading.Event().wait()
    total = ones()
    dist.all_reduce(total)
    print(total.sum().item())


@hang(
    "mismatch",
    ranks=4,
    backend="nccl",
    culprits=[0],
    by=["mismatch", "deadline"],
)
def test_one_rank_reduces_and_the_others_broadcast(world) -> None:
    """Two operations in another order.

    Source: field report class: a branch on the rank around a collective
    """
    connect()
    first, second = ones(), ones()
    if world.rank == 0:
        dist.all_reduce(first)
        dist.broadcast(second, 0)
    else:
        dist.broadcast(second, 0)
        dist.all_reduce(first)
    torch.cuda.synchronize()


@hang("deadlock", ranks=4, backend="nccl")
def test_two_groups_in_opposite_orders(world) -> None:
    """Each side needs the value of one group before it enters the other.

    Source: field report class: tensor and pipeline groups in a different order
    """
    again = dist.new_group([0, 1, 2, 3])
    connect(None, again)
    total = ones()
    groups = (None, again) if world.rank == 0 else (again, None)
    for group in groups:
        dist.all_reduce(total, group=group)
        print(total.sum().item())


@hang("mismatch", ranks=4, backend="nccl", culprits=[2], by=["mismatch", "deadline"])
def test_one_rank_has_a_step_less(world) -> None:
    """It gathers its results while the others are in their last step.

    Source: field report class: uneven numbers of batches
    """
    connect()
    for _ in range(5 if world.rank == 2 else 6):
        total = ones()
        dist.all_reduce(total)
        print(total.sum().item())
    dist.all_gather_object([None] * 4, world.rank)


@hang("deadlock", ranks=4, backend="nccl")
def test_a_member_of_a_pair_goes_to_the_barrier(world) -> None:
    """One of a pair reduces within it; the other meets everybody.

    Source: field report class: a branch in which one member of a group does not come
    """
    pair = dist.new_group([0, 2])
    connect()
    if world.rank == 0:
        total = ones()
        dist.all_reduce(total, group=pair)
        print(total.sum().item())
    dist.barrier()


@hang("straggler", ranks=4, backend="nccl", culprits=[0], waiting=[1, 2, 3], by=["deadline"])
def test_a_message_is_never_sent(world) -> None:
    """One rank needs what it receives, the others are in a barrier.

    Source: field report class: a pipeline's first stage that stalls
    """
    connect()
    if world.rank == 0:
        time.sleep(FOREVER_S)
    if world.rank == 1:
        received = ones()
        dist.recv(received, 0)
        print(received.sum().item())
    dist.barrier()


@hang("died", ranks=4, backend="nccl", culprits=[3], waiting=[0, 1, 2], by=["exit"])
def test_a_process_ends(world) -> None:
    """The others need the value of an all_reduce.

    Source: field report class: a rank that the system kills for its memory
    """
    connect()
    if world.rank == 3:
        os._exit(3)
    total = ones()
    dist.all_reduce(total)
    print(total.sum().item())


@hang("raised", ranks=4, backend="nccl", culprits=[3], waiting=[0, 1, 2], by=["raise"])
def test_a_rank_raises(world) -> None:
    """The others need the value of an all_reduce.

    Source: field report class: a batch that one rank cannot read
    """
    connect()
    if world.rank == 3:
        raise ValueError("bad batch")
    total = ones()
    dist.all_reduce(total)
    print(total.sum().item())


@hang("finished", ranks=4, backend="nccl", culprits=[3], waiting=[0, 1, 2])
def test_a_rank_returns(world) -> None:
    """It leaves the test while the others need the value of an all_reduce.

    Source: field report class: early stopping that one rank decides by itself
    """
    connect()
    if world.rank == 3:
        return
    total = ones()
    dist.all_reduce(total)
    print(total.sum().item())


@hang("livelock", ranks=2, backend="nccl", culprits=[0], waiting=[1], by=["deadline"])
def test_a_kernel_is_loaded_while_a_collective_runs(world) -> None:
    """To load a kernel CUDA waits for the GPU, which waits for the other rank.

    Source: field report class: a kernel that is first used between two collectives
    """
    again = dist.new_group([0, 1])
    for group in (None, again):
        dist.all_reduce(ones(), group=group)
    torch.cuda.synchronize()
    one, other = ones(), ones()
    if world.rank == 0:
        work = dist.all_reduce(one, async_op=True)
        torch.cuda._sleep(1000)
        dist.all_reduce(other, group=again)
        work.wait()
    else:
        dist.all_reduce(other, group=again)
        print(other[0].item())
        dist.all_reduce(one)
