"""A test that knows nothing of this plugin."""

import pytest
import torch
import torch.distributed as dist


@pytest.mark.nprocs(2)
def test_ranks_add_up():
    """This one runs in each rank."""
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
