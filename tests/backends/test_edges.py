"""The smallest and the largest worlds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.distributed as dist
from jax.experimental import multihost_utils

from pytest_multihost import World


@pytest.mark.multihost(ranks=1, backend="gloo", timeout=60)
def test_a_world_of_one_gloo_rank_has_a_group(world: World) -> None:
    """The same test runs at every size, down to one."""
    total = torch.ones(3)
    dist.all_reduce(total)
    world.barrier()

    assert (dist.get_world_size(), total.tolist()) == (1, [1, 1, 1])


@pytest.mark.multihost(ranks=1, backend="jax", local_devices=3, timeout=60)
def test_a_world_of_one_jax_rank_has_all_devices(world: World) -> None:
    """The same test runs at every size, down to one."""
    assert (jax.process_count(), jax.device_count(), len(world.devices)) == (1, 3, 3)
    assert multihost_utils.process_allgather(jnp.array([4])).tolist() == [[4]]
    multihost_utils.sync_global_devices("here")


@pytest.mark.multihost(ranks=32, backend="gloo", timeout=100)
def test_thirty_two_gloo_ranks_add_up(world: World) -> None:
    """As many ranks as four nodes have GPUs find each other and agree on a sum."""
    total = torch.tensor([1 << world.rank])
    dist.all_reduce(total)

    assert total.item() == (1 << 32) - 1


@pytest.mark.multihost(ranks=64, backend="none", timeout=100)
def test_sixty_four_ranks_meet(world: World) -> None:
    """The harness's own operations carry every rank's part to every rank."""
    world.barrier()

    assert world.gather(world.rank) == list(range(64))
    assert world.broadcast("from the primary" if world.is_primary else "") == "from the primary"
