"""Several torch worlds in one test, and groups between them; torch's ranks are not the world's."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from roles import join_group, join_world
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang("straggler", ranks=5, backend="none", culprits=[3], waiting=[2], where="time.sleep(FOREVER_S")
def test_engine_waits_beside_an_idle_frontend(world) -> None:
    """One of two engines sleeps; the trainers have ended, and a frontend has nothing to do.

    Source: https://github.com/vllm-project/vllm/issues/45223
    """
    if world.rank == 4:
        time.sleep(FOREVER_S * 2)
    join_world(world.rank % 2, 2, port=world.rank // 2)
    meet()
    if world.rank == 3:
        time.sleep(FOREVER_S)
    if world.rank == 2:
        meet()


@hang(
    "straggler",
    ranks=4,
    backend="none",
    culprits=[2],
    by=("deadline",),
    where="time.sleep(FOREVER_S",
)
def test_engine_waits_beside_servers(world) -> None:
    """One of two engines sleeps, and two servers wait for requests.

    Source: https://github.com/vllm-project/vllm/issues/39366
    """
    if world.rank in (0, 3):
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.accept()
    join_world(world.rank - 1, 2)
    if world.rank == 2:
        time.sleep(FOREVER_S)
    meet()


@hang(
    "straggler", ranks=4, backend="none", culprits=[0], waiting=[2, 3], where="time.sleep(FOREVER_S"
)
def test_weights_that_the_trainer_never_sends(world) -> None:
    """Engines wait for the first trainer in a group between the roles, in which it is number 0.

    Source: https://github.com/huggingface/trl/issues/6913
    """
    join_world(world.rank % 2, 2, port=1 + world.rank // 2)
    meet()
    if world.rank == 1:
        return
    group = join_group({0: 0, 2: 1, 3: 2}[world.rank], 3, "weights")
    if world.rank == 0:
        time.sleep(FOREVER_S)
    dist.broadcast(torch.ones(4), group=group, group_src=0)


@hang("straggler", ranks=4, backend="none", culprits=[1], waiting=[3], where="time.sleep(FOREVER_S")
def test_numbers_in_another_order(world) -> None:
    """In the group between the roles rank 3 is number 0, and rank 1 is number 1.

    Source: https://github.com/THUDM/slime/issues/2331
    """
    if world.rank % 2 == 0:
        time.sleep(FOREVER_S * 2)
    group = join_group({3: 0, 1: 1}[world.rank], 2, "weights")
    meet(group)
    if world.rank == 1:
        time.sleep(FOREVER_S)
    dist.recv(torch.ones(4), group=group, group_src=1)


@hang("unknown", ranks=5, backend="none", waiting=[0, 2])
def test_group_between_roles_that_one_does_not_join(world) -> None:
    """Two of three have come to the group, and which of the others is the third is unknown.

    Source: https://github.com/THUDM/slime/issues/2331
    """
    if world.rank in (1, 3, 4):
        time.sleep(FOREVER_S)
    join_group({0: 0, 2: 1}[world.rank], 3, "weights")


@hang("unknown", ranks=4, backend="none", waiting=[1])
def test_default_group_that_one_does_not_join(world) -> None:
    """One of two engines calls init_process_group, and which rank is the other is unknown.

    Source: https://github.com/verl-project/verl/issues/7846
    """
    if world.rank != 1:
        time.sleep(FOREVER_S)
    join_world(0, 2)


@hang("unknown", ranks=3, backend="none", waiting=[0], by=("deadline",))
def test_member_that_is_a_child_process(world) -> None:
    """The other member of the group is a process that rank 1 has started, and it sleeps.

    Source: field report class: engine cores are children of a server
    """
    if world.rank == 2:
        time.sleep(FOREVER_S)
    if world.rank == 1:
        child = multiprocessing.get_context("fork").Process(target=_member_that_sleeps)
        child.start()
        time.sleep(FOREVER_S)
    join_world(0, 2)
    meet()
    meet()


def _member_that_sleeps() -> None:
    join_world(1, 2)
    meet()
    time.sleep(FOREVER_S)


@hang("mismatch", ranks=4, backend="none", culprits=[3], waiting=[1, 2])
def test_one_engine_is_in_another_collective(world) -> None:
    """Two of three engines reduce while the third one is at a barrier.

    Source: field report class: one data-parallel engine has no request and runs a dummy step
    """
    if world.rank == 0:
        time.sleep(FOREVER_S)
    join_world(world.rank - 1, 3)
    meet()
    if world.rank == 3:
        dist.barrier()
    meet()


@hang("deadlock", ranks=3, backend="none")
def test_trainer_and_engines_use_two_groups_in_opposite_order(world) -> None:
    """An engine waits for the other one, which waits for weights, which the trainer sends last.

    Source: field report class: weights are sent while engines wait for each other
    """
    numbers = {0: 0, 1: 1, 2: 2}
    group = join_group(numbers[world.rank], 3, "weights")
    if world.rank:
        join_world(world.rank - 1, 2, port=1)
    for each in {0: [group], 1: [None, group], 2: [group, None]}[world.rank]:
        meet(each)


@hang("straggler", ranks=4, backend="none", culprits=[2], waiting=[1], where="time.sleep(FOREVER_S")
def test_gradients_of_one_trainer_never_come(world) -> None:
    """One of two trainers of DDP sleeps before its backward pass; the frontends are idle.

    Source: field report class: a trainer waits in the backward pass, in C++
    """
    if world.rank in (0, 3):
        time.sleep(FOREVER_S * 2)
    join_world(world.rank - 1, 2)
    module = DistributedDataParallel(nn.Linear(4, 4))
    module(torch.ones(2, 4)).sum().backward()
    loss = module(torch.ones(2, 4)).sum()
    if world.rank == 2:
        time.sleep(FOREVER_S)
    loss.backward()


@hang("straggler", ranks=4, backend="none", culprits=[2], waiting=[1], where="time.sleep(FOREVER_S")
def test_part_of_an_engine_world_waits(world) -> None:
    """In a group of two of three engines one is missing, and the third one has ended.

    Source: field report class: tensor parallelism within an engine
    """
    if world.rank == 0:
        time.sleep(FOREVER_S * 2)
    join_world(world.rank - 1, 3)
    pair = dist.new_group([0, 1])
    if world.rank == 3:
        return
    if world.rank == 2:
        time.sleep(FOREVER_S)
    meet(pair)


@hang("straggler", ranks=3, backend="none", culprits=[2], waiting=[1], where="time.sleep(FOREVER_S")
def test_group_whose_store_has_gone(world) -> None:
    """Rank 0 hosts the store of a group of others, and has nothing more to do with it.

    Source: field report class: a controller that hosts the store of its engines
    """
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, None, world.is_primary, wait_for_workers=False)
    if world.is_primary:
        world.barrier("made")
        del store
        time.sleep(FOREVER_S * 2)
    dist.init_process_group("gloo", store=store, rank=world.rank - 1, world_size=2)
    meet()
    world.barrier("made")
    if world.rank == 2:
        time.sleep(FOREVER_S)
    meet()
