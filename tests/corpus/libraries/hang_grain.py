"""Programs of grain in which one process has no further batch.

The truth of those without a source was written before their first run.
"""

from __future__ import annotations

import time

import grain.python as grain
import jax
import jax.numpy as jnp
from expectation import hang
from hang_orbax import sharded, start
from mishaps import FOREVER_S


@hang(
    "finished",
    ranks=2,
    backend="jax",
    culprits=[1],
    waiting=[0],
    waits_at="jax.block_until_ready(total(sharded()))",
)
def test_shards_of_grain_differ_in_length(world) -> None:
    """Shards without drop_remainder give one process a batch less.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/20404
    """
    start()
    total = jax.jit(jnp.sum)
    for _ in grain.MapDataset.range(5)[world.rank :: world.size]:
        jax.block_until_ready(total(sharded()))


def read(element: int) -> int:
    """Read a record; storage does not answer for the one after the second."""
    if element > 4:
        time.sleep(FOREVER_S)
    return element


@hang(
    "straggler",
    ranks=2,
    backend="jax",
    culprits=[1],
    waiting=[0],
    where="time.sleep(FOREVER_S)",
)
def test_a_dataset_of_grain_reads_for_ever(world) -> None:
    """A thread of grain reads ahead on one process and never comes back.

    Source: https://github.com/AI-Hypercomputer/maxtext/pull/3807
    """
    start()
    total = jax.jit(jnp.sum)
    dataset = grain.MapDataset.source([1, 2, 3, 4] if world.is_primary else [1, 2, 5, 6])
    for _ in dataset.map(read).to_iter_dataset(grain.ReadOptions(num_threads=1)):
        jax.block_until_ready(total(sharded()))


@hang("finished", ranks=3, backend="jax", culprits=[2], waiting=[0, 1], waits_at="sharded()")
def test_a_filter_of_grain_leaves_one_process_less(world) -> None:
    """Two of the records of process 2 are too short."""
    start()
    total = jax.jit(jnp.sum)
    records = [9, 9, 9, 9, 9, 9, 9, 9, 1, 9, 9, 1]
    shard = grain.MapDataset.source(records)[world.rank :: world.size]
    for _ in shard.filter(lambda record: record > 1).to_iter_dataset():
        jax.block_until_ready(total(sharded()))


def decode(element: int) -> int:
    """Decode a record; one of them is damaged."""
    return int("" if element == 5 else str(element))


@hang("raised", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], by=["raise"])
def test_a_record_of_one_process_is_damaged(world) -> None:
    """A thread of grain finds it, and the loop of that process raises."""
    start()
    total = jax.jit(jnp.sum)
    shard = grain.MapDataset.range(12)[3 * world.rank :][:4]
    for _ in shard.map(decode).to_iter_dataset():
        jax.block_until_ready(total(sharded()))
