"""Sends and receives without a partner, or all around a cycle."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S


@hang("deadlock", ranks=2, backend="gloo")
def test_both_receive_first(world) -> None:
    """Two pipeline stages both receive before they send.

    Source: https://github.com/NVIDIA/nccl/issues/479
    """
    other = 1 - world.rank
    dist.recv(torch.zeros(4), src=other)
    dist.send(torch.ones(4), dst=other)


@hang("deadlock", ranks=4, backend="gloo")
def test_ring_receives_first(world) -> None:
    """In a ring of four everybody receives from the left before sending to the right.

    Source: https://github.com/pytorch/pytorch/issues/172668
    """
    dist.recv(torch.zeros(4), src=(world.rank - 1) % 4)
    dist.send(torch.ones(4), dst=(world.rank + 1) % 4)


@hang("deadlock", ranks=2, backend="gloo")
def test_both_send_first(world) -> None:
    """Two stages both send before they receive, and a send waits for its receive.

    Source: https://github.com/pytorch/pytorch/issues/172668
    """
    other = 1 - world.rank
    dist.send(torch.ones(1 << 20), dst=other)
    dist.recv(torch.zeros(1 << 20), src=other)


@hang("finished", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_one_receive_too_many(world) -> None:
    """The receiver posts one receive more than the sender has messages.

    Source: https://github.com/ml-explore/mlx/pull/3654
    """
    for _ in range(2 + world.rank):
        if world.is_primary:
            dist.send(torch.ones(4), dst=1)
        else:
            dist.recv(torch.zeros(4), src=0)


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_send_to_a_sleeper(world) -> None:
    """A large send waits for a receive that its partner never comes to.

    Source: https://github.com/vllm-project/vllm/pull/4412 (first send passes, the next hangs)
    """
    if world.rank == 1:
        time.sleep(FOREVER_S)
    dist.send(torch.ones(1 << 20), dst=1)


@hang(
    "deadlock",
    ranks=2,
    backend="gloo",
    also=[{"kind": "mismatch", "culprits": []}],
    why="each waits for the other, and their transfers can never match",
)
def test_wrong_tag(world) -> None:
    """Sender and receiver number their micro-batches from 0 and from 1.

    Source: field report class: tags counted differently on both sides
    """
    if world.is_primary:
        dist.send(torch.ones(1 << 20), dst=1, tag=1)
    else:
        dist.recv(torch.zeros(1 << 20), src=0, tag=2)


@hang("deadlock", ranks=3, backend="gloo")
def test_stages_off_by_one(world) -> None:
    """Each stage receives from the stage after it, the last from the first.

    Source: field report class: neighbour ranks computed off by one
    """
    dist.recv(torch.zeros(4), src=(world.rank + 1) % 3)
    dist.send(torch.ones(4), dst=(world.rank + 1) % 3)


@hang("straggler", ranks=4, backend="gloo", culprits=[0], waiting=[1, 2, 3])
def test_pipeline_without_its_first_stage(world) -> None:
    """Each stage receives from the one before; the first never produces anything.

    Source: field report class: pipeline starved by its first stage
    """
    if world.is_primary:
        time.sleep(FOREVER_S)
    dist.recv(torch.zeros(4), src=world.rank - 1)
    if world.rank < 3:
        dist.send(torch.ones(4), dst=world.rank + 1)


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0])
def test_result_is_taken_for_another_ranks(world) -> None:
    """The first result is taken from anybody; then that of the rank is expected that has sent it.

    Source: https://github.com/hpc/mpifileutils/pull/26
    """
    if world.is_primary:
        dist.recv(torch.zeros(4))
        world.barrier("one is in")
        dist.recv(torch.zeros(4), src=2)
    else:
        if world.rank == 2:
            dist.send(torch.ones(4), dst=0)
        world.barrier("one is in")


@hang("deadlock", ranks=2, backend="gloo")
def test_receive_meets_reduce(world) -> None:
    """One rank is in a receive, the other in a collective of both.

    Source: https://github.com/sgl-project/sglang/issues/33289
    """
    if world.is_primary:
        dist.recv(torch.zeros(4), src=1)
    dist.all_reduce(torch.ones(4))
    if not world.is_primary:
        dist.send(torch.ones(4), dst=0)


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_batch_of_transfers_lacks_one(world) -> None:
    """A batch of transfers around a ring in which the last rank forgets its own.

    Source: https://github.com/NVIDIA/nccl/issues/784
    """
    if world.rank == 2:
        return
    left, right = (world.rank - 1) % 3, (world.rank + 1) % 3
    batch = [
        dist.P2POp(dist.isend, torch.ones(4), right),
        dist.P2POp(dist.irecv, torch.zeros(4), left),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()


@hang("mismatch", ranks=4, backend="gloo", culprits=[2], waiting=[3], where="work.wait()")
def test_ring_with_a_wrong_neighbour(world) -> None:
    """One rank of a ring sends to a wrong rank, which has got what it wants and leaves.

    Source: field report class: a ring whose order one rank computes differently
    """
    to = 0 if world.rank == 2 else (world.rank + 1) % 4
    send = dist.P2POp(dist.isend, torch.ones(4), to)
    receive = dist.P2POp(dist.irecv, torch.zeros(4), (world.rank - 1) % 4)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


@hang("mismatch", ranks=4, backend="gloo", culprits=[1], waiting=[0], where="src=3")
def test_receives_from_a_wrong_rank(world) -> None:
    """A rank receives from one that has nothing to send and has left; another one sends to it.

    Source: field report class: a number in the group is taken for a number in the world
    """
    if world.rank == 0:
        dist.send(torch.ones(4), dst=1)
    if world.rank == 1:
        dist.recv(torch.zeros(4), src=3)


@hang("mismatch", ranks=3, backend="gloo", culprits=[2], waiting=[1], where="src=0")
def test_last_stage_receives_from_the_first(world) -> None:
    """The last stage of a pipeline receives from the first one, which has sent all and left.

    Source: field report class: the previous stage is computed from a wrong offset
    """
    if world.rank == 0:
        dist.send(torch.ones(4), dst=1)
    if world.rank == 1:
        dist.recv(torch.zeros(4), src=0)
        dist.send(torch.ones(4), dst=2)
    if world.rank == 2:
        dist.recv(torch.zeros(4), src=0)
