"""Tests that know nothing of this plugin."""

import time

import torch
import torch.distributed as dist
from harness import MultiProcessTestCase


class TestSums(MultiProcessTestCase):
    """Sums over two ranks."""

    def add(self):
        """Return the sum of a one of each rank."""
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    def join_group(self):
        """Make the process group."""
        store = f"file://{self.file_name}"
        dist.init_process_group("gloo", store, rank=self.rank, world_size=self.world_size)

    def test_ranks_add_up(self):
        """Each rank has the sum."""
        self.join_group()
        assert self.add() == 2

    def test_ranks_have_as_many_batches(self):
        """Rank 1 is late by a day."""
        self.join_group()
        if self.rank == 1:
            time.sleep(86_400)
        assert self.add() == 2
