import jax
import numpy as np
import pytest
from checkpointing import save
from jax.sharding import NamedSharding, PartitionSpec


@pytest.fixture
def mesh(world):
    """All devices of the world: a row for each host, a column for each device of a host."""
    return jax.make_mesh((world.size, jax.local_device_count()), ("host", "device"))


@pytest.fixture
def state(mesh):
    """A small training state: weights in shards, and one step counter for everybody."""
    rows, columns = mesh.devices.shape
    weights = np.arange(8.0 * rows * columns, dtype=np.float32).reshape(2 * rows, 4 * columns)
    return {
        "weights": _spread(weights, NamedSharding(mesh, PartitionSpec("host", "device"))),
        "step": _spread(np.int32(1000), NamedSharding(mesh, PartitionSpec())),
    }


def _spread(values, sharding):
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


@pytest.fixture
def checkpoint(state, shared_tmp_path):
    """The path of a checkpoint that all hosts have written together."""
    path = shared_tmp_path / "step-1000"
    save(path, state)
    return path
