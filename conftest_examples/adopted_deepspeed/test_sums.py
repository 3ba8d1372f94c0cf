"""Tests that know nothing of this plugin."""

import time

import torch
import torch.distributed as dist
from harness import DistributedTest


class TestSums(DistributedTest):
    """Sums over two and over three ranks."""

    world_size = (2, 3)

    def test_ranks_add_up(self):
        """Each rank has the sum."""
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size()


class TestBatches(DistributedTest):
    """Rank 1 has none."""

    def test_ranks_have_as_many_batches(self):
        """It is late by a day."""
        if dist.get_rank() == 1:
            time.sleep(86_400)
        dist.all_reduce(torch.ones(1))
