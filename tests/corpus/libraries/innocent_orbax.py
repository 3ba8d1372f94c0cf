"""Checkpoints of orbax that look like hangs for a while, and are written."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from expectation import innocent
from hang_orbax import sharded, start

LATE_S = 3.0
"""Longer than a proof takes."""


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
