"""Checkpoints of orbax, as its guide begins: every process takes part in every call."""

from __future__ import annotations

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

pytestmark = pytest.mark.multihost(ranks=2, backend="jax")


def make_state() -> dict[str, jax.Array]:
    """Return two arrays over the devices of all processes."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    shape = (len(jax.devices()) * 2,)

    def ones(index: tuple[slice, ...]) -> np.ndarray:
        return np.ones(shape)[index]

    return {name: jax.make_array_from_callback(shape, sharding, ones) for name in ("w", "b")}


@pytest.fixture(autouse=True)
def _connected(world) -> None:
    multihost_utils.sync_global_devices("start")


def test_checkpointer_saves_and_restores(world, shared_tmp_path) -> None:
    """A save and a restore, each by all processes."""
    state = make_state()
    checkpointer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    checkpointer.save(shared_tmp_path / "ckpt", args=ocp.args.StandardSave(state))
    restored = checkpointer.restore(shared_tmp_path / "ckpt", args=ocp.args.StandardRestore(state))
    assert restored["w"].shape == state["w"].shape


def test_async_checkpointer_saves(world, shared_tmp_path) -> None:
    """A save in the background, which all processes await."""
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    checkpointer.save(shared_tmp_path / "ckpt", args=ocp.args.StandardSave(make_state()))
    checkpointer.wait_until_finished()


def test_manager_keeps_the_last_two(world, shared_tmp_path) -> None:
    """Three steps are saved, and the first is removed."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager(shared_tmp_path / "run", options=options) as manager:
        for step in range(3):
            manager.save(step, args=ocp.args.StandardSave(make_state()))
        assert manager.latest_step() == 2
        manager.restore(2, args=ocp.args.StandardRestore(make_state()))


def test_manager_saves_in_the_background(world, shared_tmp_path) -> None:
    """Two steps are saved while the program goes on."""
    with ocp.CheckpointManager(shared_tmp_path / "run") as manager:
        for step in range(2):
            manager.save(step, args=ocp.args.StandardSave(make_state()))
        manager.wait_until_finished()
        assert manager.latest_step() == 1


def test_manager_goes_on_after_a_restart(world, shared_tmp_path) -> None:
    """A second manager finds what the first has saved."""
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(shared_tmp_path / "run", options=options) as manager:
        manager.save(0, args=ocp.args.StandardSave(make_state()))
    with ocp.CheckpointManager(shared_tmp_path / "run", options=options) as manager:
        step = manager.latest_step()
        manager.restore(step, args=ocp.args.StandardRestore(make_state()))
        manager.save(step + 1, args=ocp.args.StandardSave(make_state()))


def test_the_newest_step_is_restored(world, shared_tmp_path) -> None:
    """A restart goes on from the newest of two steps, whose arrays hold their step."""
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(shared_tmp_path / "run", options=options) as manager:
        for step in (1, 2):
            state = jax.tree.map(lambda each, step=step: each * step, make_state())
            manager.save(step, args=ocp.args.StandardSave(state))
    with ocp.CheckpointManager(shared_tmp_path / "run", options=options) as manager:
        restored = manager.restore(
            manager.latest_step(), args=ocp.args.StandardRestore(make_state())
        )
    world.same("weights", np.asarray(restored["w"].addressable_shards[0].data))
