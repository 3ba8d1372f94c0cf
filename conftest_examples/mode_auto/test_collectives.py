import os  # noqa: F401 - the condition below is evaluated here, in the ranks

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.skipif(
    "int(os.environ.get('WORLD_SIZE', '1')) < 4", reason="needs four ranks"
)


def test_all_reduce(process_group):
    x = torch.ones(2)
    dist.all_reduce(x, group=process_group)
    assert x.tolist() == [4.0, 4.0]


def test_broadcast(process_group):
    x = torch.tensor([dist.get_rank()])
    dist.broadcast(x, src=3, group=process_group)
    assert x.item() == 3
