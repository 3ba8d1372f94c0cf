"""Datasets of grain that are slow, or of which one process has less."""

from __future__ import annotations

import time

import grain.python as grain
import jax
import jax.numpy as jnp
from expectation import innocent
from hang_orbax import sharded, start


def late(element: int) -> int:
    """Return a sample, late."""
    time.sleep(0.7)
    return element


@innocent(ranks=2, backend="jax")
def test_a_dataset_of_grain_is_slow(world) -> None:
    """Threads of grain read ahead, and take a while for each sample."""
    start()
    total = jax.jit(jnp.sum)
    for _ in grain.MapDataset.range(8)[world.rank :: world.size].map(late).to_iter_dataset():
        jax.block_until_ready(total(sharded()))


@innocent(ranks=3, backend="jax")
def test_the_shorter_shard_is_repeated(world) -> None:
    """All take as many steps, and the last process reads slowly."""
    start()
    total = jax.jit(jnp.sum)
    shard = grain.MapDataset.range(7)[world.rank :: world.size].repeat()
    dataset = iter((shard.map(late) if world.rank == 2 else shard).to_iter_dataset())
    for _ in range(6):
        next(dataset)
        jax.block_until_ready(total(sharded()))
