"""Programs of orbax in which one process leaves the common path."""

from __future__ import annotations

import time

import jax
import numpy as np
import orbax.checkpoint as ocp
from expectation import hang
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mishaps import FOREVER_S


def sharded() -> jax.Array:
    """Return an array over the devices of all processes."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    shape = (len(jax.devices()) * 2,)
    return jax.make_array_from_callback(shape, sharding, lambda index: np.ones(shape)[index])


def start() -> None:
    """Meet once, so that connections are there."""
    multihost_utils.sync_global_devices("start")


@hang("finished", ranks=2, backend="jax", culprits=[1], waiting=[0], waits_at="manager.save(0")
def test_only_the_primary_saves_with_orbax(world, shared_tmp_path) -> None:
    """CheckpointManager.save is for all processes.

    Source: https://github.com/google/orbax/issues/999
    """
    start()
    with ocp.CheckpointManager(shared_tmp_path / "run") as manager:
        if world.is_primary:
            manager.save(0, args=ocp.args.StandardSave({"weight": sharded()}))


@hang("straggler", ranks=2, backend="jax", culprits=[1], waiting=[0], where="time.sleep(FOREVER_S)")
def test_one_process_is_late_for_the_restore(world, shared_tmp_path) -> None:
    """The other waits in a barrier of orbax.

    Source: https://github.com/google/orbax/issues/3181
    """
    start()
    state = {"weight": sharded()}
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(shared_tmp_path / "state", state)
    checkpointer.wait_until_finished()
    if world.rank == 1:
        time.sleep(FOREVER_S)
    checkpointer.restore(shared_tmp_path / "state", state)


@hang(
    "raised",
    ranks=2,
    backend="jax",
    culprits=[0],
    waiting=[1],
    by=["raise"],
    where="raise OSError(28",
)
def test_the_primary_fails_before_a_save(world, shared_tmp_path) -> None:
    """The primary cannot write its metadata; the other is in orbax' barrier.

    Source: https://github.com/google/orbax/issues/392
    """
    start()
    if world.is_primary:
        raise OSError(28, "No space left on device")
    ocp.StandardCheckpointer().save(shared_tmp_path / "state", {"weight": sharded()})


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[1],
    by=["mismatch", "proof", "raise"],
    outcome=["hung", "failed"],
)
def test_one_process_finds_no_checkpoint(world, shared_tmp_path, tmp_path) -> None:
    """It looks into a folder of its own host and starts anew, while the others restore.

    The truth was written before the first run.
    """
    start()
    state = {"weight": sharded()}
    with ocp.CheckpointManager(shared_tmp_path / "run") as manager:
        manager.save(3, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        own = tmp_path if world.rank == 1 else shared_tmp_path / "run"
        if any(each.name == "3" for each in own.iterdir()):
            manager.restore(3, args=ocp.args.StandardRestore(state))
        jax.block_until_ready(jax.jit(lambda x: x.sum())(sharded()))
