import pytest
import torch
import torch.distributed as dist


@pytest.mark.multihost(backend="gloo")
def test_all_ranks_are_summed_up(world):
    x = torch.tensor([world.rank])
    dist.all_reduce(x)
    assert x.item() == sum(range(world.size))
