"""A dataset of grain that is slow."""

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
