"""A rank that is held in a program that is right: it is late, and nothing else changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.distributed as dist
from jax.experimental.multihost_utils import process_allgather, sync_global_devices
from jax.sharding import NamedSharding, PartitionSpec

from pytest_multihost import World, at, faults

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def held(op: str, backend: str) -> pytest.MarkDecorator:
    """Mark a test in which rank 1 is held before an operation."""
    fault = faults.hold(rank=1, at=at.collective(op))
    return pytest.mark.multihost(ranks=3, timeout=60, backend=backend, faults=[fault])


def use_torch(world: World) -> None:
    """Use operations of several kinds, each of which needs rank 1."""
    total, store = torch.ones(1), dist.distributed_c10d._get_default_store()
    dist.all_reduce(total)
    dist.barrier()
    if world.rank == 1:
        dist.send(total, 2)
        store.set("key", "value")
    elif world.rank == 2:
        dist.recv(total, 1)
    assert store.get("key") == b"value"
    found = [None, None, None]
    dist.all_gather_object(found, world.rank)
    assert (found, total.tolist()) == ([0, 1, 2], [3.0])


@held("all_reduce", "gloo")
def test_all_reduce(world: World) -> None:
    """A collective."""
    use_torch(world)


@held("send", "gloo")
def test_send(world: World) -> None:
    """A transfer; rank 0 waits for a key meanwhile."""
    use_torch(world)


@held("store.set", "gloo")
def test_store(world: World) -> None:
    """What no rank takes part in, and the others wait for."""
    use_torch(world)


@held("all_gather_object", "gloo")
def test_objects(world: World) -> None:
    """What consists of collectives."""
    use_torch(world)


@held("sync_global_devices", "jax")
def test_barrier_of_jax(world: World) -> None:
    """The others wait in what jax runs, of which nothing is recorded from inside."""
    sync_global_devices("a")
    gathered = process_allgather(jnp.array(world.rank))
    assert gathered.tolist() == [0, 1, 2]


@pytest.mark.multihost(
    ranks=2,
    timeout=60,
    backend="jax",
    faults=[faults.hold(rank=1, at=at.call("jax:make_array_from_process_local_data"))],
)
def test_jitted_collective(world: World) -> None:
    """Which is native code from the call on."""
    mesh = jax.make_mesh((world.size,), ("host",))
    sharding = NamedSharding(mesh, PartitionSpec("host"))
    local = jnp.full((1,), world.rank + 1.0)
    array = jax.make_array_from_process_local_data(sharding, local)
    assert float(jax.jit(jnp.sum)(array)) == 3.0
