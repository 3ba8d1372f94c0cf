"""Collectives that one rank never enters, enters too often or enters differently."""

from __future__ import annotations

import contextlib
import time

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed import all_reduce, checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


def read_shard() -> None:
    """Read from a storage that never answers."""
    time.sleep(FOREVER_S)


@hang(
    "straggler",
    ranks=4,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2, 3],
    where="time.sleep(FOREVER_S)",
)
def test_primary_reads_while_others_reduce(world) -> None:
    """The primary reads a checkpoint for ever, the others are in the first all_reduce.

    Source: https://github.com/google/orbax/issues/3181
    """
    if world.is_primary:
        read_shard()
    meet()


@hang("straggler", ranks=8, backend="gloo", culprits=[5], waiting=[0, 1, 2, 3, 4, 6, 7])
def test_one_of_eight_stalls_at_the_fifth_step(world) -> None:
    """One of eight is alive and no longer enters the collective of each step.

    Source: https://github.com/jax-ml/jax/issues/38503
    """
    for step in range(8):
        if step == 5 and world.rank == 5:
            time.sleep(FOREVER_S)
        meet()


@hang("straggler", ranks=4, backend="gloo", culprits=[1, 2], waiting=[0, 3])
def test_two_of_four_stay_in_storage(world) -> None:
    """Two ranks hang in the same read, the others wait for both in a barrier.

    Source: https://github.com/marin-community/marin/issues/8534
    """
    meet()
    if world.rank in (1, 2):
        read_shard()
    dist.barrier()


@hang("straggler", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], where="time.sleep")
def test_gather_without_one(world) -> None:
    """Three ranks gather objects, the fourth still prepares its own.

    Source: torchtune#1107 (skew at checkpoint time)
    """
    if world.rank == 3:
        time.sleep(FOREVER_S)
    found: list[object] = [None] * world.size
    dist.all_gather_object(found, {"rank": world.rank})


@hang("finished", ranks=4, backend="gloo", culprits=[1, 2, 3], waiting=[0])
def test_reduce_on_the_primary_only(world) -> None:
    """A collective stands inside `if rank == 0`; the others return from the test.

    Source: field report class: a collective inside `if is_global_zero`
    """
    meet()
    if world.is_primary:
        meet()


@hang("finished", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2])
def test_barrier_on_all_but_the_last(world) -> None:
    """All ranks but the last enter a barrier.

    Source: https://github.com/pytorch/pytorch/issues/138322
    """
    if world.rank != 3:
        dist.barrier()


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_uneven_batches(world) -> None:
    """A rank with one batch less leaves the loop while the other reduces its last gradients.

    Source: https://github.com/pytorch/pytorch/issues/33148
    """
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(4 - world.rank):
        model(torch.ones(2, 4)).sum().backward()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_early_return_on_an_empty_shard(world) -> None:
    """A rank whose shard is empty returns early, one step of the others later they wait.

    Source: https://github.com/argonne-lcf/dlio_benchmark/pull/339
    """
    shard = range(world.rank, 5, world.size)
    for step in range(2):
        if step >= len(shard):
            return
        meet()


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2, 3],
    by=("mismatch", "proof"),
)
def test_extra_reduce_on_the_primary(world) -> None:
    """The primary alone reduces a metric, so its all_reduce meets the barrier of the others.

    Source: https://github.com/huggingface/transformers-bloom-inference/pull/40
    """
    meet()
    if world.is_primary:
        meet()
    dist.barrier()


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[3],
    waiting=[0, 1, 2],
    by=("mismatch", "proof"),
)
def test_roots_differ(world) -> None:
    """One rank believes in another root, so it receives instead of sending.

    Source: field report class: the root is computed per rank
    """
    meet()
    dist.broadcast(torch.ones(4), src=0 if world.rank == 3 else 3)


@hang("mismatch", ranks=4, backend="gloo", culprits=[2], waiting=[0], by=("mismatch", "proof"))
def test_others_leave_before_a_root_differs(world) -> None:
    """Two ranks have their data from the right root, and return; the one of another root stays.

    Source: field report class: the root is computed per rank
    """
    dist.broadcast(torch.ones(3), src=1 if world.rank == 2 else 0)


@hang("mismatch", ranks=3, backend="gloo", culprits=[1], waiting=[0], by=("mismatch", "proof"))
def test_a_sum_goes_to_another_root(world) -> None:
    """One rank keeps the sum for itself, and one of the others has already returned.

    Source: field report class: the root is computed per rank
    """
    dist.reduce(torch.ones(3), dst=1 if world.rank == 1 else 0)


@hang("mismatch", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3])
def test_one_rank_sums_a_smaller_tensor(world) -> None:
    """It has its sum and goes on; the others wait for the rest of theirs.

    Source: field report class: the last batch of one rank is smaller
    """
    dist.all_reduce(torch.ones(2 if world.rank == 1 else 3))
    dist.barrier()


@hang(
    "mismatch", ranks=5, backend="gloo", culprits=[2], waiting=[0, 3, 4], by=("mismatch", "proof")
)
def test_one_is_in_another_collective_and_one_has_returned(world) -> None:
    """Both are to be mended: the page says "also finished" of the one that has returned.

    Source: field report class: an early return and a branch on the rank in one function
    """
    if world.rank == 1:
        return
    if world.rank == 2:
        dist.barrier()
    meet()


@hang("mismatch", ranks=2, backend="gloo", culprits=[], waiting=None, by=("mismatch", "proof"))
def test_each_takes_the_other_for_the_root(world) -> None:
    """Two ranks broadcast, each with the other as root.

    Source: field report class: the root is computed per rank
    """
    dist.broadcast(torch.ones(4), src=1 - world.rank)


@hang("mismatch", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=("mismatch", "proof"))
def test_gather_meets_reduce(world) -> None:
    """Collectives are called in the order of a dict that differs on one rank.

    Source: https://github.com/NVIDIA/apex/issues/19
    """
    meet()
    if world.rank == 2:
        dist.all_gather([torch.ones(4) for _ in range(3)], torch.ones(4))
    else:
        dist.barrier()


@hang("mismatch", ranks=2, backend="gloo", by=("mismatch", "proof"))
def test_reduce_meets_broadcast(world) -> None:
    """One rank reduces its gradients, the other still waits for the weights of the first.

    Source: https://github.com/NVIDIA/nccl/issues/531
    """
    meet()
    if world.is_primary:
        meet()
    else:
        dist.broadcast(torch.ones(4), src=0)
    meet()


@hang(
    "mismatch", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], by=("mismatch", "proof")
)
def test_one_gathers_while_three_reduce(world) -> None:
    """A flag that differs on one rank lets it gather what the others reduce.

    Source: https://github.com/horovod/horovod/issues/2640
    """
    meet()
    if world.rank == 1:
        dist.all_gather([torch.ones(4) for _ in range(4)], torch.ones(4))
    else:
        meet()
    dist.barrier()


@hang("mismatch", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_gradients_are_reduced_while_others_are_at_a_barrier(world) -> None:
    """Gradients are reduced each second step, on rank 2 each step: C++ does it, unseen by Python.

    Source: field report class: steps of gradient accumulation that differ between ranks
    """
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(2):
        is_last = step == 1 or world.rank == 2
        with contextlib.nullcontext() if is_last else model.no_sync():
            model(torch.ones(2, 4)).sum().backward()
    dist.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], where="time.sleep")
def test_collective_imported_by_name(world) -> None:
    """The waiters call a collective that their module has imported by name.

    Source: https://github.com/jax-ml/jax/issues/38503
    """
    all_reduce(torch.ones(4))
    if world.rank == 1:
        time.sleep(FOREVER_S)
    all_reduce(torch.ones(4))


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_sharded_model_on_the_primary_only(world) -> None:
    """The primary alone evaluates a sharded model, whose weights are gathered for it.

    Source: https://github.com/pytorch/pytorch/issues/143536
    """
    model = torch.nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (world.size,))
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    model(torch.ones(2, 4))
    if world.is_primary:
        model(torch.ones(2, 4))


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_group_that_the_code_makes_itself(world) -> None:
    """The code calls init_process_group as under torchrun, so rank 0 hosts a TCPStore.

    Source: field report class: a script that makes its own process group
    """
    dist.init_process_group("gloo")
    meet()
    if world.rank == 1:
        read_shard()
    meet()


@hang("straggler", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], where="time.sleep")
def test_future_of_a_work(world) -> None:
    """Ranks wait for a work's future, not for the work.

    Source: field report class: communication hooks, which hand futures on
    """
    if world.rank == 3:
        time.sleep(FOREVER_S)
    dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()


@hang("straggler", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], where="time.sleep")
def test_sharded_tensor_is_gathered_without_one(world) -> None:
    """A DTensor is made whole, which is a functional collective below.

    Source: field report class: full_tensor() or redistribute() inside a condition
    """
    mesh = init_device_mesh("cpu", (world.size,))
    mine = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)], run_check=False)
    if world.rank == 1:
        time.sleep(FOREVER_S)
    assert mine.redistribute(mesh, [Replicate()]).to_local().sum() == 4 * world.size


@hang("finished", ranks=4, backend="gloo", culprits=[1, 2, 3], waiting=[0])
def test_checkpoint_on_the_primary_only(world, shared_tmp_path) -> None:
    """Only the primary calls the save, which is a collective.

    Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (all ranks must call)
    """
    if world.is_primary:
        checkpoint.save({"weight": torch.ones(3)}, checkpoint_id=str(shared_tmp_path / "step-1"))


def train(steps: int) -> DistributedDataParallel:
    """Return a model after some steps; only C++ code enters collectives."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    for _ in range(steps):
        model(torch.ones(1, 8)).sum().backward()
    return model


@hang(
    "finished",
    ranks=4,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2, 3],
    waits_at="backward()",
    sides={(1,): "", (0, 2, 3): "backward()"},
)
def test_one_batch_less_with_nothing_but_ddp(world) -> None:
    """A rank returns a step earlier; no collective is called from Python.

    Source: https://github.com/pytorch/pytorch/issues/38174 (uneven inputs)
    """
    train(3 if world.rank == 1 else 5)


@hang("straggler", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], where="time.sleep")
def test_sleeps_between_steps_of_ddp(world) -> None:
    """A rank sleeps before a step of which C++ code alone reduces the gradients.

    Source: field report class: one slow data loader under DDP
    """
    model = train(3)
    if world.rank == 1:
        time.sleep(FOREVER_S)
    model(torch.ones(1, 8)).sum().backward()


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1, 3],
    by=("exit", "raise"),
    outcome=("crashed",),
    where="all_reduce",
)
def test_metric_meets_gradients_of_ddp(world) -> None:
    """A rank has a batch less and reduces a number, where the others' gradients are reduced.

    Source: field report class: uneven batches, with a metric after the epoch
    """
    train(3 if world.rank == 2 else 4)
    dist.all_reduce(torch.ones(1))
