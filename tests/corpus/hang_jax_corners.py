"""Hangs of jax from corners that the other files do not visit.

Their truth was written before the first run.
"""

from __future__ import annotations

import queue
import time

import jax
import jax.numpy as jnp
import numpy as np
from expectation import hang
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mishaps import FOREVER_S


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> jax.Array:
    """Return new weights; the mean over the batch needs all processes."""
    return weights - 0.1 * jnp.mean(batch)


def spread(value: float) -> jax.Array:
    """Return an array with one element on each device of the world."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    over = NamedSharding(mesh, PartitionSpec("x"))
    size = len(jax.devices())
    return jax.make_array_from_callback((size,), over, lambda _: np.full(1, value, np.float32))


def train(count: int) -> None:
    """Take steps, and wait for each."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    weights = jax.device_put(jnp.zeros(()), NamedSharding(mesh, PartitionSpec()))
    for _ in range(count):
        weights = jax.block_until_ready(train_step(weights, spread(1.0)))


@hang("finished", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], timeout=60)
def test_one_process_trains_a_step_less(world) -> None:
    """The shard of process 1 has a batch fewer."""
    train(4 - (world.rank == 1))


@hang("finished", ranks=3, backend="jax", culprits=[2], waiting=[0, 1], timeout=60)
def test_metrics_are_gathered_by_two_of_three(world) -> None:
    """Process 2 has no metrics and returns."""
    train(1)
    if world.rank != 2:
        multihost_utils.process_allgather(jnp.ones(3))


@hang(
    "straggler", ranks=2, backend="jax", culprits=[1], waiting=[0], where="time.sleep", timeout=60
)
def test_a_host_callback_sleeps(world) -> None:
    """The callback of process 1 reads from a disk that does not answer, before the step."""

    def read(value: np.ndarray) -> np.ndarray:
        if world.rank == 1:
            time.sleep(FOREVER_S)
        return value

    train(1)
    jax.block_until_ready(
        jax.jit(lambda x: jax.pure_callback(read, jax.ShapeDtypeStruct((), jnp.float32), x))(1.0)
    )
    train(1)


@hang("raised", ranks=3, backend="jax", culprits=[0], waiting=[1, 2], by=("raise",), timeout=60)
def test_the_primary_cannot_read_what_it_broadcasts(world, shared_tmp_path) -> None:
    """The configuration is missing on process 0; the others wait for its broadcast."""
    config = np.zeros(2)
    if world.is_primary:
        config = np.frombuffer((shared_tmp_path / "config").read_bytes())
    multihost_utils.broadcast_one_to_all(config)


@hang("straggler", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], where="get()", timeout=60)
def test_a_prefetcher_that_was_never_started(world) -> None:
    """Process 1 takes its batch from a queue without a producer."""
    train(2)
    if world.rank == 1:
        queue.Queue[int]().get()
    train(1)


@hang(
    "straggler", ranks=4, backend="jax", culprits=[3], waiting=[0, 1, 2], where="sleep", timeout=60
)
def test_the_last_process_saves_alone_before_a_sync(world) -> None:
    """Process 3 writes to storage that does not answer, the others are in the sync."""
    train(1)
    if world.rank == 3:
        time.sleep(FOREVER_S)
    multihost_utils.sync_global_devices("saved")
