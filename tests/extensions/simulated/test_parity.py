"""Operations of a simulated group give what gloo's give, in one world that has both groups."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py

BOTH = """
import random
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.float16,
          torch.bfloat16]
SHAPES = [(), (1,), (5,), (2, 3), (4, 1, 2), (0,), (300,)]

def real_group(world, folder):
    store = dist.FileStore(str(folder / "gloo"), world.size)
    group = ProcessGroup(store, world.rank, world.size)
    gloo = ProcessGroupGloo(store, world.rank, world.size, timedelta(seconds=60))
    for device in ("cpu",):
        group._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, gloo)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    return group

def number(rng, *key):
    return random.Random(repr((rng, key))).randint(0, 3)

def tensor(case, rank, index=0, shape=None, dtype=None):
    made = torch.Generator().manual_seed(1000 * case + 10 * rank + index)
    count = torch.Size(shape).numel()
    found = torch.randint(0, 4, (count,), generator=made).reshape(shape).to(dtype)
    return found

def options(kind, is_async, **given):
    opts = kind()
    opts.asyncOp = is_async
    for name, value in given.items():
        setattr(opts, name, value)
    return opts
"""

COLLECTIVES = (
    BOTH
    + """
def run_case(group, case, rank, size):
    rng = random.Random(case)
    name = rng.choice(["allreduce", "reduce", "broadcast", "allgather", "_allgather_base",
        "gather", "scatter", "reduce_scatter", "_reduce_scatter_base", "alltoall_base", "alltoall",
        "barrier", "allreduce_coalesced", "allgather_into_tensor_coalesced",
        "reduce_scatter_tensor_coalesced", "uneven"])
    dtype, shape, root = rng.choice(DTYPES), rng.choice(SHAPES), rng.randrange(size)
    is_async = rng.random() < 0.5
    op = rng.choice([SUM, MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT])
    t = lambda index=0, shape=shape: tensor(case, rank, index, shape, dtype)
    many = (size * max(1, shape[0]) if shape else size, *shape[1:]) if shape else (size,)
    if 0 in shape:
        shape, many = (2,), (2 * size,)
    empty = lambda shape=shape: torch.zeros(shape, dtype=dtype)
    if name == "allreduce":
        found = [t()]
        work = group.allreduce(found, options(c10d.AllreduceOptions, is_async, reduceOp=op))
    elif name == "allreduce_coalesced":
        found = [t(), t(1, (3,))]
        opts = options(c10d.AllreduceCoalescedOptions, is_async, reduceOp=op)
        work = group.allreduce_coalesced(found, opts)
    elif name == "reduce":
        found = [t()]
        opts = options(c10d.ReduceOptions, is_async, reduceOp=op, rootRank=root)
        work = group.reduce(found, opts)
        if rank != root:
            work.wait()
            return name, []
    elif name == "broadcast":
        found = [t()]
        work = group.broadcast(found, options(c10d.BroadcastOptions, is_async, rootRank=root))
    elif name == "allgather":
        found = [empty() for _ in range(size)]
        work = group.allgather([found], [t(shape=shape)], options(c10d.AllgatherOptions, is_async))
    elif name == "_allgather_base":
        found = [empty(many)]
        one = t(shape=(many[0] // size, *many[1:]))
        work = group._allgather_base(found[0], one, options(c10d.AllgatherOptions, is_async))
    elif name == "allgather_into_tensor_coalesced":
        found = [empty((size * 2,)), empty((size,))]
        ones = [t(0, (2,)), t(1, (1,))]
        work = group.allgather_into_tensor_coalesced(
            found, ones, options(c10d.AllgatherOptions, is_async))
    elif name == "gather":
        found = [empty() for _ in range(size)] if rank == root else []
        opts = options(c10d.GatherOptions, is_async, rootRank=root)
        work = group.gather([found] if found else [], [t(shape=shape)], opts)
    elif name == "scatter":
        found = [empty()]
        parts = [[t(each, shape) for each in range(size)]] if rank == root else []
        work = group.scatter(found, parts, options(c10d.ScatterOptions, is_async, rootRank=root))
    elif name == "reduce_scatter":
        found = [empty()]
        parts = [[t(each, shape) for each in range(size)]]
        work = group.reduce_scatter(
            found, parts, options(c10d.ReduceScatterOptions, is_async, reduceOp=op))
    elif name == "_reduce_scatter_base":
        found = [empty((many[0] // size, *many[1:]))]
        work = group._reduce_scatter_base(
            found[0], t(shape=many), options(c10d.ReduceScatterOptions, is_async, reduceOp=op))
    elif name == "reduce_scatter_tensor_coalesced":
        found = [empty((2,)), empty((1,))]
        parts = [t(0, (2 * size,)), t(1, (size,))]
        work = group.reduce_scatter_tensor_coalesced(
            found, parts, options(c10d.ReduceScatterOptions, is_async, reduceOp=op))
    elif name == "alltoall_base":
        found = [empty(many)]
        work = group.alltoall_base(
            found[0], t(shape=many).contiguous(), [], [], options(c10d.AllToAllOptions, is_async))
    elif name == "uneven":
        table = [[random.Random(repr((case, a, b))).randint(0, 3) for b in range(size)]
                 for a in range(size)]
        takes = [table[a][rank] for a in range(size)]
        found = [empty((sum(takes), 2))]
        sent = t(shape=(sum(table[rank]), 2)).contiguous()
        work = group.alltoall_base(found[0], sent, takes, table[rank],
            options(c10d.AllToAllOptions, is_async))
    elif name == "alltoall":
        found = [empty() for _ in range(size)]
        parts = [t(each, shape) for each in range(size)]
        work = group.alltoall(found, parts, options(c10d.AllToAllOptions, is_async))
    else:
        found = []
        work = group.barrier(options(c10d.BarrierOptions, is_async))
    work.wait()
    return name, found

def outcome(group, case, world):
    try:
        return run_case(group, case, world.rank, world.size)
    except (RuntimeError, ValueError) as error:
        return "error", []

@pytest.mark.multihost(ranks=[2, 3, 4], backend="simulated")
def test_it(world, shared_tmp_path):
    real, seen = real_group(world, shared_tmp_path), set()
    for case in range(150):
        (name, ours), (theirs_name, theirs) = (
            outcome(dist.group.WORLD, case, world), outcome(real, case, world))
        assert name == theirs_name, (case, name, theirs_name)
        seen.add(name)
        for one, two in zip(ours, theirs, strict=True):
            assert one.dtype == two.dtype and one.shape == two.shape
            assert torch.equal(one, two), (case, name, one, two)
    assert len(seen - {"error"}) >= 15, seen
"""
)

REFUSED = (
    BOTH
    + """
def launches(group, rank, size):
    t, many = torch.ones(2), lambda count, shape=2: [torch.zeros(shape) for _ in range(count)]
    whole, twice = torch.zeros(2 * size), torch.zeros(3 * size)
    for wrong in (many(1), many(size + 1), many(size, 3), many(size, 1), many(size, (2, 1))):
        yield lambda: group.allgather([wrong], [t])
        yield lambda: group.reduce_scatter([t], [wrong])
        if rank == 0:
            gathers, scatters = (options(kind, False, rootRank=0)
                                 for kind in (c10d.GatherOptions, c10d.ScatterOptions))
            yield lambda: group.gather([wrong], [t], gathers)
            yield lambda: group.scatter([t], [wrong], scatters)
    yield lambda: group.alltoall(many(1), many(size))
    yield lambda: group.alltoall(many(size), many(size + 1))
    yield lambda: group.allgather_coalesced([[t]] * (size + 1), [t])
    yield lambda: group._allgather_base(twice, t)
    yield lambda: group._reduce_scatter_base(t, twice)
    yield lambda: group.alltoall_base(whole, whole, [1] * size, [1] * size)
    yield lambda: group.alltoall_base(whole, whole, [2] * (size - 1) + [1, 1], [])

@pytest.mark.multihost(ranks=[2, 3], backend="simulated")
def test_it(world, shared_tmp_path):
    for group in (dist.group.WORLD, real_group(world, shared_tmp_path)):
        for index, launch in enumerate(launches(group, world.rank, world.size)):
            with pytest.raises(RuntimeError):
                launch().wait()
                pytest.fail(f"{group} takes tensors of launch {index}")
        world.barrier()
    # Ours goes on. A barrier of gloo raises the error of a work that its thread still holds.
    dist.barrier()
"""
)

FUNCTIONS = (
    BOTH
    + """
import torch.distributed._functional_collectives as funcol

@pytest.mark.multihost(ranks=[2, 3], backend="simulated")
def test_functions(world):
    rank, size = world.rank, world.size
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "long": "x" * (100 * rank)})
    assert [each["rank"] for each in objects] == list(range(size))
    taken = [None] * size if rank == 1 else None
    dist.gather_object(rank, taken, dst=1)
    assert taken == (list(range(size)) if rank == 1 else None)
    told = [{"plan": 7}] if rank == 0 else [None]
    dist.broadcast_object_list(told, src=0)
    assert told == [{"plan": 7}]
    mine = [None]
    dist.scatter_object_list(mine, list(range(10, 10 + size)) if rank == 0 else None, src=0)
    assert mine == [10 + rank]
    dist.monitored_barrier()
    assert dist.get_backend() == "gloo"
    x = torch.full((2,), float(rank))
    assert funcol.all_reduce(x, "sum", list(range(size))).tolist() == [sum(range(size))] * 2
    assert funcol.all_gather_tensor(x, 0, list(range(size))).numel() == 2 * size

@pytest.mark.multihost(ranks=3, backend="simulated")
def test_transfers(world):
    rank, size = world.rank, world.size
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(3)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), ahead),
        dist.P2POp(dist.irecv, got, behind)])
    for each in works:
        each.wait()
    assert got.tolist() == [behind] * 3
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            seen.add(dist.recv(got))
            assert int(got[0]) in seen
        assert seen == {1, 2}
    else:
        dist.send(torch.full((3,), float(rank)), 0)
    assert dist.isend(torch.ones(1), ahead, tag=5) is not None
    assert dist.irecv(got[:1], behind, tag=5).wait()

@pytest.mark.multihost(ranks=4, backend="simulated")
def test_groups_and_stores(world):
    rank = world.rank
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[rank // 2]
    x = torch.ones(1) * rank
    dist.all_reduce(x, group=mine)
    assert x.item() == (1.0 if rank < 2 else 5.0)
    assert dist.get_process_group_ranks(mine) == [0, 1] if rank < 2 else [2, 3]
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2]
    y = torch.ones(1) * rank
    dist.all_reduce(y, group=mesh["dp"].get_group())
    assert y.item() == (2.0 if rank % 2 == 0 else 4.0)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("key", "value")
    assert store.get("key") == b"value"
    store.add("count", 1)
    dist.barrier()
    assert store.add("count", 0) == 4
    assert store.check(["key"]) and not store.check(["nothing"])
    assert store.compare_set("key", "value", "new") in (b"new",)
    with pytest.raises(dist.DistStoreError, match="wait timeout after 50ms"):
        store.wait(["never"], timedelta(milliseconds=50))

@pytest.mark.multihost(ranks=2, backend="simulated")
def test_works(world):
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    assert work.wait() and x.tolist() == [2.0, 2.0]
    future = dist.all_reduce(x, async_op=True).get_future()
    assert future.wait()[0].tolist() == [4.0, 4.0]
    then = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] / 2)
    assert then.wait().tolist() == [4.0, 4.0]

@pytest.mark.multihost(ranks=2, backend="simulated")
def test_nccl(world):
    dist.init_process_group("nccl")
    assert dist.get_backend() == "nccl"
    x = torch.ones(2) * world.rank
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.tolist() == [0.5, 0.5]

@pytest.mark.multihost(ranks=2, backend="simulated")
def test_made_by_the_program(world):
    dist.destroy_process_group()
    for backend in ("cpu:gloo,cuda:nccl", "gloo", None):
        dist.init_process_group(backend)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2.0
        dist.destroy_process_group()
"""
)


@pytest.mark.program(COLLECTIVES)
def test_every_collective_gives_what_gloo_gives(worlds: Worlds) -> None:
    """150 calls at 2, 3 and 4 ranks, drawn over types, shapes, roots and reductions."""
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.program(FUNCTIONS)
def test_the_functions_of_torch_distributed_work(worlds: Worlds) -> None:
    """Objects, transfers, groups, meshes, stores, futures, and groups that the program makes."""
    worlds.run.assert_outcomes(passed=7)


@pytest.mark.program(REFUSED)
def test_tensors_that_gloo_refuses_are_refused(worlds: Worlds) -> None:
    """Lists of another length, tensors of another shape, counts that do not fit."""
    worlds.run.assert_outcomes(passed=2)
