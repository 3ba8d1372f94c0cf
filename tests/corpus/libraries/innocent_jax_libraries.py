"""The same for libraries over jax."""

from __future__ import annotations

import time

import flax.linen as nn
import grain.python as grain
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from expectation import innocent
from hang_jax_libraries import sharded, start

LATE_S = 3.0


@innocent(ranks=2, backend="jax")
def test_one_process_is_late_for_an_orbax_save(world, shared_tmp_path) -> None:
    """The other waits in orbax' barrier, and it comes."""
    start()
    time.sleep(LATE_S * world.rank)
    with ocp.CheckpointManager(shared_tmp_path / "run") as manager:
        manager.save(0, args=ocp.args.StandardSave({"weight": sharded()}))
        manager.wait_until_finished()


@innocent(ranks=2, backend="jax")
def test_an_asynchronous_save_overlaps_with_steps(world, shared_tmp_path) -> None:
    """Steps go on, slowly, while orbax writes."""
    start()
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    checkpointer.save(shared_tmp_path / "state", args=ocp.args.StandardSave({"w": sharded()}))
    total = jax.jit(jnp.sum)
    for _ in range(4):
        time.sleep(0.8 * world.rank)
        jax.block_until_ready(total(sharded()))
    checkpointer.wait_until_finished()


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


@innocent(ranks=2, backend="jax")
def test_a_step_of_flax_is_late_on_one_process(world) -> None:
    """A process is late for its second step."""
    start()
    model = nn.Dense(1)
    params = model.init(jax.random.key(0), jnp.ones((1, 4)))
    step = jax.jit(lambda params, x: jnp.sum(model.apply(params, jnp.ones((1, 4)))) + x.sum())
    for _ in range(2):
        jax.block_until_ready(step(params, sharded()))
        time.sleep(LATE_S * world.rank)
    jax.block_until_ready(step(params, sharded()))
