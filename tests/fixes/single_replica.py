"""A program's checkpoint, restored as the reports have it: one replica reads and tells the others.

Copied beside the programs under test, which import it.
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import type_handlers

VALUES = {
    "weights": np.arange(64 * 32, dtype=np.float32).reshape(64, 32),
    "bias": np.linspace(-1, 1, 8, dtype=np.float32),
}
PARTS = {"weights": PartitionSpec(None, "model"), "bias": PartitionSpec()}


def mesh() -> jax.sharding.Mesh:
    """A replica for each process, whose devices share the model."""
    return jax.make_mesh((jax.process_count(), jax.local_device_count()), ("replica", "model"))


def save(path: Path) -> None:
    """Write the values; every process its part."""
    everywhere = mesh()
    state = {
        name: jax.make_array_from_callback(
            values.shape,
            NamedSharding(everywhere, PARTS[name]),
            lambda index, values=values: values[index],
        )
        for name, values in VALUES.items()
    }
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(state))


def restore(path: Path) -> dict[str, jax.Array]:
    """Read them on the first replica, whose devices tell all others."""
    handler = type_handlers.SingleReplicaArrayHandler(broadcast_memory_limit_bytes=1 << 30)
    type_handlers.register_type_handler(jax.Array, handler, override=True)
    everywhere = mesh()
    args = {
        name: type_handlers.SingleReplicaArrayRestoreArgs(
            sharding=NamedSharding(everywhere, PARTS[name]),
            global_shape=values.shape,
            dtype=values.dtype,
        )
        for name, values in VALUES.items()
    }
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=args))


def check(restored: dict[str, jax.Array]) -> None:
    """Compare what each device of this process holds with what was saved."""
    assert restored.keys() == VALUES.keys()
    for name, values in VALUES.items():
        assert len(restored[name].addressable_shards) == jax.local_device_count()
        for shard in restored[name].addressable_shards:
            np.testing.assert_array_equal(shard.data, values[shard.index], err_msg=name)
