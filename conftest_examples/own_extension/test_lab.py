import os

import pytest
import torch.distributed as dist


@pytest.mark.multihost(ranks=4, hosts="loopback:2")
def test_two_ranks_share_each_host(world):
    assert world.gather(world.host) == ["loopback-0"] * 2 + ["loopback-1"] * 2
    assert os.environ["MASTER_ADDR"] == "127.0.1.1"


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_the_ranks_meet(world):
    dist.monitored_barrier()
