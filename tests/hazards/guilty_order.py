"""Collectives of several groups in orders that no common order agrees with; gloo forgives it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from expectation import guilty, in_order

from pytest_multihost import World


def all_reduce(group: object = None) -> object:
    """Launch an all-reduce and return its work."""
    return dist.all_reduce(torch.ones(3), group=group, async_op=True)


@guilty(
    "order",
    "first.append",
    "second.append",
    ranks=3,
    like="meta-pytorch/torchrec pull 4149: most ranks all-to-all first, two all-reduce first",
)
def test_two_pipelined_batches(world: World) -> None:
    """The prefetch of the next batch overtakes the loss on some ranks."""
    table, loss = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    first, second, works = [], [], []
    if world.rank == 2:
        second.append(dist.all_reduce(torch.ones(1), group=loss, async_op=True))
    first.append(dist.all_reduce(torch.ones(9), group=table, async_op=True))
    if world.rank != 2:
        second.append(dist.all_reduce(torch.ones(1), group=loss, async_op=True))
    works += [*first, *second]
    for work in works:
        work.wait()


@guilty(
    "order",
    "async_op=True",
    like="NVIDIA/Megatron-LM issue 5749: gradients of experts and of the rest, step 852",
)
def test_gradient_buckets_of_two_groups(world: World) -> None:
    """Which bucket is full first depends on the layers of the rank's stage."""
    expert, dense = dist.new_group([0, 1]), dist.new_group([0, 1])
    buckets = {"expert": expert, "dense": dense}
    ready = ["expert", "dense"] if world.rank == 0 else ["dense", "expert"]
    works = []
    for name in ready:
        works.append(  # noqa: PERF401 - one launch a line
            dist.all_reduce(torch.ones(4), group=buckets[name], async_op=True)
        )
    for work in works:
        work.wait()


@guilty(
    "order",
    "dist.broadcast",
    ranks=3,
    like="MPI 1.1 standard, section 4.12: broadcasts in three communicators in a cycle",
)
def test_broadcasts_in_a_cycle(world: World) -> None:
    """Each rank is the root of the pair with the next one, and sends before it receives."""
    groups = {pair: dist.new_group(list(pair)) for pair in ((0, 1), (1, 2), (0, 2))}
    following, last = (world.rank + 1) % 3, (world.rank - 1) % 3
    works = [
        dist.broadcast(torch.ones(1), src=root, group=groups[low, high], async_op=True)
        for root, other in ((world.rank, following), (last, world.rank))
        for low, high in [sorted((root, other))]
    ]
    for work in works:
        work.wait()


@guilty(
    "order",
    "dist.barrier",
    ranks=3,
    like="ms-swift prewarm of Megatron groups: each rank its own next neighbour first",
)
def test_own_neighbour_first(world: World) -> None:
    """No two ranks share two groups: only the cycle of all three is wrong."""
    groups = {pair: dist.new_group(list(pair)) for pair in ((0, 1), (1, 2), (0, 2))}
    following = (world.rank + 1) % 3
    mine = sorted(
        (pair for pair in groups if world.rank in pair), key=lambda pair: following not in pair
    )
    works = [dist.barrier(group=groups[pair], async_op=True) for pair in mine]
    for work in works:
        work.wait()


@guilty(
    "order",
    "async_op=True",
    like="NVIDIA/nccl issue 574: several communicators worked for days, then hung under load",
)
def test_groups_in_the_order_of_a_set(world: World) -> None:
    """A set of names: other hosts hash them otherwise."""
    groups = {name: dist.new_group([0, 1]) for name in ("tensor", "data", "context")}
    names = sorted(groups, key=lambda name: (name[world.rank], name))
    works = [dist.all_reduce(torch.ones(2), group=groups[name], async_op=True) for name in names]
    for work in works:
        work.wait()


@guilty("order", "return dist.all_reduce", ranks=4)
def test_a_subgroup_beside_the_world(world: World) -> None:
    """The pair's reduction is launched before the world's on one rank of the pair alone."""
    everybody, pair = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1])
    works = []
    if world.rank < 2:
        works += in_order(
            world.rank,
            [
                lambda: all_reduce(everybody),
                lambda: all_reduce(pair),
            ],
        )
    else:
        works.append(all_reduce(everybody))
    for work in works:
        work.wait()  # type: ignore[attr-defined]


@guilty(
    "order",
    "reduce_scatter",
    "all_reduce",
    like="Lightning-AI/pytorch-lightning pull 15195: collectives of metrics and of the strategy",
)
def test_metrics_beside_gradients(world: World) -> None:
    """Every tenth step logs; a rank that is behind does so before its gradients."""
    metrics = dist.new_group([0, 1])
    for step in range(20):
        parts = list(torch.ones(2, 1))
        logs_first = step == 10 and world.rank == 1
        works = []
        if logs_first:
            works.append(dist.reduce_scatter(parts[0], parts, group=metrics, async_op=True))
        works.append(dist.all_reduce(torch.ones(2), async_op=True))
        if step % 10 == 0 and not logs_first:
            works.append(dist.reduce_scatter(parts[0], parts, group=metrics, async_op=True))
        for each in works:
            each.wait()
