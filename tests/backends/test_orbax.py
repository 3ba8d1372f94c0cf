from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytest_multihost import World

pytestmark = pytest.mark.multihost(ranks=4, backend="jax", local_devices=2, timeout=60)

State = dict[str, jax.Array]


@pytest.fixture
def mesh(world: World) -> Mesh:
    """A row of devices for each rank."""
    return jax.make_mesh((world.size, 2), ("host", "device"))


def _values() -> dict[str, np.ndarray]:
    """Return what the leaves of a training state hold, each of its own kind."""
    return {
        "weights": np.arange(8 * 16, dtype=np.float32).reshape(8, 16) / 7,
        "bias": np.linspace(-1, 1, 5, dtype=np.float32),
        "tokens": np.arange(16, dtype=np.int32) ** 2,
        "half": np.arange(8, dtype=jnp.bfloat16).reshape(4, 2),
        "step": np.int32(1234),
    }


_LAYOUT = {
    "weights": PartitionSpec("host", "device"),
    "bias": PartitionSpec(),
    "tokens": PartitionSpec(("device", "host")),
    "half": PartitionSpec("host"),
    "step": PartitionSpec(),
}


def _spread(mesh: Mesh, layout: dict[str, PartitionSpec]) -> State:
    def leaf(name: str, values: np.ndarray) -> jax.Array:
        sharding = NamedSharding(mesh, layout[name])
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    return {name: leaf(name, values) for name, values in _values().items()}


def _restore(path: Path, like: State) -> State:
    wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    with ocp.StandardCheckpointer() as checkpointer:
        restored: State = checkpointer.restore(path, wanted)
    return restored


def _save(path: Path, state: State) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)


def _check(restored: State, expected: State) -> None:
    """Compare all leaves: names, types, layout, and what each local device holds."""
    assert restored.keys() == expected.keys()
    for name, array in expected.items():
        back = restored[name]
        assert back.dtype == array.dtype, name
        assert back.sharding.is_equivalent_to(array.sharding, array.ndim), name
        pairs = zip(back.addressable_shards, array.addressable_shards, strict=True)
        for found, wanted in pairs:
            assert found.device == wanted.device
            np.testing.assert_array_equal(found.data, wanted.data, err_msg=name)


def test_orbax_restores_every_shard_to_the_device_that_saved_it(
    mesh: Mesh, shared_tmp_path: Path
) -> None:
    """A state of sharded, replicated, integer, bfloat16 and scalar leaves survives orbax."""
    state = _spread(mesh, _LAYOUT)
    _save(shared_tmp_path / "step", state)

    _check(_restore(shared_tmp_path / "step", state), state)


def test_orbax_restores_onto_another_layout(mesh: Mesh, shared_tmp_path: Path) -> None:
    """What was saved in shards can be restored in others: shards cross the ranks' borders."""
    _save(shared_tmp_path / "step", _spread(mesh, _LAYOUT))
    other = dict.fromkeys(_LAYOUT, PartitionSpec()) | {"weights": PartitionSpec("device", "host")}

    expected = _spread(mesh, other)

    _check(_restore(shared_tmp_path / "step", expected), expected)


def test_every_rank_writes_its_part_of_one_checkpoint(
    mesh: Mesh, world: World, shared_tmp_path: Path
) -> None:
    """The ranks are separate processes to orbax: each writes files of its own, in one place."""
    _save(shared_tmp_path / "step", _spread(mesh, _LAYOUT))

    writers = {path.name for path in (shared_tmp_path / "step").glob("ocdbt.process_*")}
    assert world.gather(writers) == [{f"ocdbt.process_{rank}" for rank in range(4)}] * 4


def test_a_checkpoint_manager_saves_in_the_background_and_keeps_the_newest(
    mesh: Mesh, world: World, shared_tmp_path: Path
) -> None:
    """Orbax's own threads, barriers and deletions across ranks come to an end."""
    state = _spread(mesh, _LAYOUT)
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(shared_tmp_path, options=options) as manager:
        for step in (1, 2, 3):
            grown = jax.tree.map(lambda leaf, factor=step: leaf * factor, state)
            manager.save(step, args=ocp.args.StandardSave(grown))
        manager.wait_until_finished()

        assert world.gather(sorted(manager.all_steps())) == [[2, 3]] * 4
        wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        _check(manager.restore(3, args=ocp.args.StandardRestore(wanted)), grown)
