"""Hangs of torch's libraries, meshes and stores: FSDP2, DTensor, DDP, pipelines, checkpoints.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

BY_RAISE = ("raise", "proof")
BY_MISMATCH = ("mismatch", "proof")


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


# FSDP2, DTensor and meshes


@hang("mismatch", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_MISMATCH)
def test_a_batch_without_images_skips_the_vision_tower(world) -> None:
    """Rank 1 has text only, so its first gather is that of the language model.

    Both parts have the same size: the gathers match, and the backward pass does not.

    Source: https://github.com/pytorch/pytorch/issues/152964
    """
    mesh = init_device_mesh("cpu", (3,))
    vision = fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
    language = fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
    hidden = torch.ones(2, 8)
    if world.rank != 1:
        hidden = vision(hidden)
    loss = language(hidden).sum()
    loss.backward()


@hang(
    "mismatch",
    ranks=4,
    backend="simulated",
    culprits=[1],
    waiting=[0, 2, 3],
    by=BY_MISMATCH,
    where="dist.all_reduce(loss)",
)
def test_one_rank_has_no_last_micro_batch(world) -> None:
    """Gradients are reduced with the second micro-batch, which rank 1 does not have."""
    model = fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (4,)))
    loss = torch.zeros(1)
    for number in range(1 if world.rank == 1 else 2):
        model.set_requires_gradient_sync(number == 1)
        model(torch.ones(2, 8)).sum().backward()
    dist.all_reduce(loss)


@hang(
    "finished",
    ranks=4,
    backend="simulated",
    culprits=[1],
    also=[{"kind": "finished", "culprits": [3]}],
    why="each row of the mesh waits for a rank of its own: the earlier is the diagnosis",
    waits_at="full_tensor()",
)
def test_a_norm_of_tensors_sharded_twice_on_one_column(world) -> None:
    """On a 2 x 2 mesh only the first column computes the norm of the whole tensor.

    Source: https://github.com/areal-project/AReaL/pull/187 (its mistake, on two axes)
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    weight = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0), Shard(1)])
    if mesh.get_local_rank("tp") == 0:
        weight.full_tensor().norm()


@hang("finished", ranks=4, backend="simulated", culprits=[0], waiting=[1, 3])
def test_one_rank_reduces_over_the_other_axis(world) -> None:
    """Rank 1 takes "tp" for "dp": its peer there has left, and rank 3 waits for rank 1."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    meet(mesh.get_group("tp" if world.rank == 1 else "dp"))


@hang(
    "finished",
    ranks=16,
    backend="simulated",
    culprits=[5],
    waiting=[0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
)
def test_one_shard_overflows_on_a_mesh_of_three_axes(world) -> None:
    """Rank 5 alone sees an infinite loss in its second step and gives up."""
    mesh = init_device_mesh("cpu", (2, world.size // 4, 2), mesh_dim_names=("pp", "dp", "tp"))
    for step in range(3):
        loss = math.inf if world.rank == 5 and step == 1 else 1.0
        if not math.isfinite(loss):
            return
        meet(mesh.get_group("tp"))
        meet(mesh.get_group("dp"))
    dist.barrier()


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2, 3],
    by=BY_MISMATCH,
    where="dist.all_reduce",
)
def test_a_functional_gather_meets_a_reduce(world) -> None:
    """Three ranks use the value of a functional all_gather, one reduces in place."""
    if world.rank == 1:
        dist.all_reduce(torch.ones(4))
        return
    gathered = functional.all_gather_tensor(torch.ones(4), 0, dist.group.WORLD)
    print(gathered.sum().item())


# DDP


@hang("mismatch", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_MISMATCH)
def test_a_nan_skips_the_backward_pass_of_one_rank(world) -> None:
    """Rank 1 goes on to its next forward pass, which broadcasts buffers.

    Source: https://github.com/NVIDIA-NeMo/Automodel/pull/2468
    """
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model = DistributedDataParallel(layers)
    for step in range(5):
        batch = torch.randn(8, 4)
        if world.rank == 1 and step == 2:
            batch[0] = math.nan
        loss = model(batch).sum()
        if torch.isnan(loss):
            continue
        loss.backward()


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2],
    by=BY_MISMATCH,
    where="with Join",
)
def test_a_barrier_in_a_loop_that_is_joined(world) -> None:
    """Rank 0 has a batch less and shadows the passes of DDP, but not the barrier of the loop."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    with Join([model]):
        for _ in range(2 if world.rank == 0 else 3):
            model(torch.ones(2, 4)).sum().backward()
            dist.barrier()


# Messages, subgroups and coalescing


@hang("raised", ranks=4, backend="simulated", culprits=[1], waiting=[0, 2, 3], by=BY_RAISE)
def test_a_router_loses_a_token(world) -> None:
    """The parts that rank 1 wants to send are one row less than it has."""
    parts = [2, 2, 2, 1] if world.rank == 1 else [2, 2, 2, 2]
    got = torch.zeros(8, 4)
    dist.all_to_all_single(got, torch.ones(8, 4), [2, 2, 2, 2], parts)


@hang("finished", ranks=2, backend="simulated", culprits=[0], waiting=[1])
def test_objects_are_sent_once_and_received_twice(world) -> None:
    """The sender packs both objects into one list, the receiver asks for two lists."""
    if world.is_primary:
        dist.send_object_list(["config", "weights"], dst=1)
    else:
        first: list[object] = [None, None]
        dist.recv_object_list(first, src=0)
        dist.recv_object_list([None], src=0)


@hang("deadlock", ranks=3, backend="simulated", semantics="nccl")
def test_the_last_stage_is_not_in_the_first_batch(world) -> None:
    """The first batch of a group makes its communicator, for which the last stage is needed.

    The last stage waits for a message of the middle one, which comes after that batch.
    """
    dist.init_process_group("nccl")
    if world.rank == 2:
        dist.recv(torch.zeros(4), src=1)
        return
    peer = 1 - world.rank
    batch = [
        dist.P2POp(dist.isend, torch.ones(4), peer),
        dist.P2POp(dist.irecv, torch.zeros(4), peer),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    if world.rank == 1:
        dist.send(torch.ones(4), dst=2)


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1, 3],
    by=BY_MISMATCH,
    where="dist.barrier()",
)
def test_a_rank_has_nothing_to_coalesce(world) -> None:
    """Rank 2 has no gradients of this kind, so its coalesced all_reduce does not take place."""
    gradients = [] if world.rank == 2 else [torch.ones(4), torch.ones(8)]
    with dist._coalescing_manager():
        for each in gradients:
            dist.all_reduce(each)
    dist.barrier()


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1, 3],
    by=BY_MISMATCH,
    where="dist.all_reduce",
)
def test_a_monitored_barrier_meets_a_reduce(world) -> None:
    """Rank 2 is a step ahead of the barrier that the others check in at."""
    meet()
    if world.rank == 2:
        dist.all_reduce(torch.ones(4))
        return
    dist.monitored_barrier()


# Odd places


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=BY_MISMATCH,
    where="dist.barrier()",
)
def test_a_loader_that_is_closed_early_waits_for_all(world) -> None:
    """Rank 1 breaks out of its loop, and the end of its generator is a barrier."""

    def batches() -> Iterator[int]:
        try:
            yield from range(6)
        finally:
            dist.barrier()

    for number in batches():
        if world.rank == 1 and number == 3:
            break
        meet()


class Communicator:
    """It is closed by all ranks together, whenever it is collected."""

    def __del__(self) -> None:
        """Meet all others."""
        dist.barrier()


@hang("deadlock", ranks=2, backend="gloo")
def test_a_communicator_is_collected_by_one_rank(world) -> None:
    """The driver drops its communicator; the worker keeps its own and waits for a command.

    Source: https://github.com/vllm-project/vllm/pull/4508
    """
    communicator = Communicator()
    meet()
    if world.is_primary:
        del communicator
        dist.send(torch.ones(1), dst=1)
    else:
        dist.recv(torch.zeros(1), src=0)


@hang("raised", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_RAISE, where="raise")
def test_groups_are_destroyed_by_the_rank_that_fails(world) -> None:
    """The others see closed connections before the error of rank 1 is out.

    Source: https://github.com/pytorch/torchtitan/pull/1342
    """
    try:
        meet()
        if world.rank == 1:
            raise ValueError("bad shard")
        meet()
    finally:
        dist.destroy_process_group()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], waits_at="group=beats")
def test_a_heartbeat_thread_of_one_rank_has_failed(world) -> None:
    """Its main thread joins it and is done; the threads of the others wait for its beat."""
    beats = dist.new_group()

    def beat() -> None:
        for number in range(5):
            if world.rank == 2 and number == 2:
                print("no sensor")
                return
            dist.all_reduce(torch.ones(1), group=beats)

    thread = threading.Thread(target=beat)
    thread.start()
    thread.join()


@hang("deadlock", ranks=2, backend="gloo", by=("deadline", "proof"))
def test_a_sender_thread_asks_for_a_lock_again_and_again(world) -> None:
    """The main thread of rank 0 holds the lock in a collective, for which rank 1 is too late.

    Rank 1 waits for the message of the sender, which asks for the lock twice a second.
    """
    if world.rank == 1:
        dist.recv(torch.zeros(4), src=0)
        meet()
        return
    lock = threading.Lock()

    def send() -> None:
        while not lock.acquire(timeout=0.5):
            print("busy")
        dist.send(torch.ones(4), dst=1)
        lock.release()

    with lock:
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        meet()
    thread.join()


@hang("raised", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=BY_RAISE, where="raise")
def test_an_id_is_never_published(world) -> None:
    """The primary cannot make the id of a communicator that the others get from the store."""
    store = dist.PrefixStore("communicator-0", _get_default_store())
    if world.is_primary:
        raise OSError("no device")
    store.get("id")


class SlowWriter(FileSystemWriter):
    """A storage that does not answer one rank."""

    def write_data(self, plan, planner) -> object:
        """Block on rank 1."""
        if dist.get_rank() == 1:
            time.sleep(FOREVER_S)
        return super().write_data(plan, planner)


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_storage_does_not_answer_a_thread_of_an_asynchronous_save(world, shared_tmp_path) -> None:
    """All main threads wait for their futures; one thread writes, the others wait for it."""
    writer = SlowWriter(shared_tmp_path / "step-1")
    saved = dcp.async_save({"weight": torch.ones(8)}, storage_writer=writer)
    saved.result()
