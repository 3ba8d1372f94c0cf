import pytest
import torch
from training import train

pytestmark = pytest.mark.multihost(backend="gloo", timeout=60)


def shard(world, batches):
    generator = torch.Generator().manual_seed(world.rank)
    return [torch.rand(8, 4, generator=generator) for _ in range(batches)]


def test_all_ranks_end_with_the_same_weights(world):
    weights = world.gather(train(shard(world, 3)).tolist())
    assert weights == [weights[0]] * world.size


@pytest.mark.multihost_expect("finished", culprits=[0])
def test_uneven_shards_hang(world):
    train(shard(world, 2 if world.is_primary else 3))


def test_uneven_shards_end_if_the_ranks_join(world):
    train(shard(world, 2 if world.is_primary else 3), joined=True)
