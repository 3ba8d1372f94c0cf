"""Works that are waited for in ways that are easily missed, and transfers in an order."""

from __future__ import annotations

import contextlib
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from expectation import innocent
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from pytest_multihost import World


@innocent()
def test_the_future_of_a_work(world: World) -> None:
    """As hooks of DDP do it: the future is waited for, not the work."""
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] / world.size).wait()[0] == 1


@innocent()
def test_a_work_that_is_asked(world: World) -> None:
    """Polled until it says that it is complete."""
    work = dist.all_reduce(torch.ones(2), async_op=True)
    while not work.is_completed():
        time.sleep(0.001)


@innocent()
def test_works_waited_for_backwards(world: World) -> None:
    """All of them, the last one first."""
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(5)]
    for work in reversed(works):
        work.wait()


@innocent()
def test_synchronize_waits_too(world: World) -> None:
    """The method that only orders streams on GPUs."""
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    dist.barrier()


@innocent()
def test_a_hook_of_ddp(world: World) -> None:
    """Its future goes to the reducer, which waits for it in C++."""
    model = DistributedDataParallel(torch.nn.Linear(2, 2))

    def hook(state, bucket):  # type: ignore[no-untyped-def] # noqa: ANN202 - DDP evaluates them
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    model(torch.ones(1, 2)).sum().backward()


@innocent()
def test_uneven_inputs_with_join(world: World) -> None:
    """DDP's reducer waits in C++ for what Join has launched."""
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    with Join([model]):
        for _ in range(2 + world.rank):
            model(torch.ones(1, 2)).sum().backward()


@innocent()
def test_functional_collectives(world: World) -> None:
    """Launched and waited for in C++."""
    x = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    assert x[0] == world.size


@innocent()
def test_an_exchange_in_turns(world: World) -> None:
    """Even ranks send first, odd ranks receive first."""
    x, peer = torch.ones(2), 1 - world.rank
    steps = [lambda: dist.send(x, dst=peer), lambda: dist.recv(x, src=peer)]
    for step in steps if world.rank == 0 else steps[::-1]:
        step()


@innocent(ranks=3)
def test_a_ring_of_isends(world: World) -> None:
    """All send first, and none waits for it before it has received."""
    edge, halo = torch.ones(1), torch.empty(1)
    work = dist.isend(edge, dst=(world.rank + 1) % 3)
    dist.recv(halo, src=(world.rank - 1) % 3)
    work.wait()


@innocent(ranks=3)
def test_a_batch_of_transfers(world: World) -> None:
    """Sends and receives of one batch have no order."""
    edge, halo = torch.ones(1), torch.empty(1)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, edge, (world.rank + 1) % 3),
            dist.P2POp(dist.irecv, halo, (world.rank - 1) % 3),
        ]
    )
    for work in works:
        work.wait()


@innocent(ranks=3)
def test_a_pipeline(world: World) -> None:
    """Each stage receives, computes and sends; the first and the last do less."""
    x = torch.ones(2)
    for _ in range(3):
        if world.rank > 0:
            dist.recv(x, src=world.rank - 1)
        if world.rank < 2:
            dist.send(x, dst=world.rank + 1)


@innocent(ranks=3)
def test_messages_in_another_order(world: World) -> None:
    """Tags tell them apart; the receives are begun before any is waited for."""
    x, y = torch.ones(1), torch.ones(1)
    if world.rank == 0:
        dist.send(x, dst=1, tag=1)
        dist.send(y, dst=1, tag=2)
    if world.rank == 1:
        late = dist.irecv(y, src=0, tag=2)
        dist.recv(x, src=0, tag=1)
        late.wait()


@innocent(ranks=3)
def test_receives_from_anybody(world: World) -> None:
    """Whose message comes first is open."""
    x = torch.ones(1)
    if world.rank == 0:
        for _ in range(2):
            dist.recv(x)
    else:
        dist.send(x, dst=0)


@innocent(ranks=3)
def test_only_members_meet(world: World) -> None:
    """The rank that is no member has nothing to enter."""
    group = dist.new_group([0, 1])
    if world.rank < 2:
        dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()


@innocent()
def test_roots_do_other_things_than_the_rest(world: World) -> None:
    """Gather and scatter: all members enter them, by different lines."""
    mine = torch.ones(1)
    if world.rank == 0:
        dist.gather(mine, [torch.empty(1) for _ in range(2)], dst=0)
        dist.scatter(mine, [torch.ones(1)] * 2, src=0)
    else:
        dist.gather(mine, dst=0)
        dist.scatter(mine, src=0)


@innocent()
def test_objects(world: World) -> None:
    """Each is several collectives, and on all ranks the same."""
    dist.broadcast_object_list([world.rank], src=0)
    dist.all_gather_object([None, None], world.rank)


@innocent()
def test_an_error_that_both_handle(world: World) -> None:
    """The call fails on both ranks, before anything is sent."""
    for _ in range(2):
        with contextlib.suppress(RuntimeError, ValueError):
            dist.all_gather([torch.ones(1)] * 3, torch.ones(1))
    dist.barrier()


@innocent()
def test_three_thousand_operations(world: World) -> None:
    """More than the slot page has room for, in two groups, and all in one order."""
    other = dist.new_group([0, 1])
    x = torch.ones(1)
    for step in range(3000):
        dist.all_reduce(x, group=other if step % 3 else None)
