import jax
import numpy as np
import pytest
from checkpointing import restore
from jax.sharding import NamedSharding, PartitionSpec

pytestmark = pytest.mark.multihost(backend="jax", local_devices=2)


def test_restore_gives_every_device_its_shard_back(checkpoint, state):
    restored = restore(checkpoint, like=state)

    for name in ("weights", "step"):
        assert restored[name].sharding == state[name].sharding
        back, saved = restored[name].addressable_shards, state[name].addressable_shards
        for shard, original in zip(back, saved, strict=True):
            np.testing.assert_array_equal(shard.data, original.data)


def test_restore_can_lay_the_weights_out_anew(checkpoint, state, mesh):
    everywhere = NamedSharding(mesh, PartitionSpec())
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), state
    )

    weights = restore(checkpoint, like)["weights"]

    np.testing.assert_array_equal(weights.ravel(), np.arange(weights.size))
