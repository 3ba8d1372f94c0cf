"""Jitted collectives on a part of the processes."""

from __future__ import annotations

import time
from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
from expectation import hang
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def total(processes: Collection[int]) -> float:
    """Sum up an array that lies on the devices of these processes: their all-reduce."""
    devices = [each for each in jax.devices() if each.process_index in processes]
    mesh = Mesh(np.array(devices), ("x",))
    spread = NamedSharding(mesh, PartitionSpec("x"))
    array = jax.make_array_from_callback((mesh.size,), spread, lambda _: np.ones(1, np.float32))
    summed = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(array)
    return float(summed.addressable_data(0))


@hang("deadlock", ranks=3, backend="jax", culprits=[])
def test_three_pairs_begin_with_different_neighbours(world) -> None:
    """Each process begins with another pair's mesh, and all wait in a ring.

    Source: field report class: stages on meshes of their own, started in another order
    """
    orders = [[(0, 1), (0, 2)], [(1, 2), (0, 1)], [(0, 2), (1, 2)]]
    for pair in orders[world.rank]:
        total(pair)


@hang("finished", ranks=4, backend="jax", culprits=[3], waiting=[2])
def test_one_of_a_pair_has_left_and_so_has_another_pair(world) -> None:
    """Two replicas sum up by themselves; in the second one process does so once more.

    Source: field report class: a replica whose processes have different numbers of batches
    """
    replica = (0, 1) if world.rank < 2 else (2, 3)
    total(replica)
    if world.rank == 2:
        total(replica)


@hang("deadlock", ranks=3, backend="jax", culprits=[])
def test_a_pair_sums_before_one_of_it_meets_all(world) -> None:
    """One of a pair is in the pair's sum, the other at the meeting of all that comes after it.

    Source: field report class: a barrier of all within what a part of the processes does
    """
    if world.rank == 0:
        total((0, 1))
    multihost_utils.sync_global_devices("after the sum")
    if world.rank == 1:
        total((0, 1))


@hang("straggler", ranks=4, backend="jax", culprits=[3], waiting=[0, 1, 2])
def test_a_chain_over_meshes(world) -> None:
    """0 waits for 1 on their mesh, 1 for 2 on theirs, 2 for 3, who sleeps.

    Source: field report class: a late stage, told at the stage that is farthest from it
    """
    if world.rank == 3:
        time.sleep(600)
    for pair in [(2, 3), (1, 2), (0, 1)]:
        if world.rank in pair:
            total(pair)
