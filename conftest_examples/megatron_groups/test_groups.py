import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.multihost(ranks=4, backend="gloo", timeout=60)


def test_neighbours_share_a_tensor(world, groups):
    pair = dist.get_process_group_ranks(groups.get_tensor_model_parallel_group())
    across = dist.get_process_group_ranks(groups.get_data_parallel_group())
    assert pair == [0, 1] if world.rank < 2 else [2, 3]
    assert across == ([0, 2] if world.rank % 2 == 0 else [1, 3])


@pytest.mark.multihost_expect("finished", culprits=[3], waiting=[0, 2])
def test_a_reduction_that_one_rank_leaves_out(world, groups):
    if world.rank != 3:
        dist.all_reduce(torch.ones(2), group=groups.get_tensor_model_parallel_group())
    dist.all_reduce(torch.ones(2), group=groups.get_data_parallel_group())
