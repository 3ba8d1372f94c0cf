"""One of eight ways to hang, under torch's MultiProcessTestCase; LIMIT_S is its own timeout."""

import os

import hangs
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

NAME = os.environ["CASE"]


class TestOne(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_one(self):
        store = dist.FileStore(self.file_name, 3)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=3)
        hangs.run(NAME, self.rank)
        hangs.tear_down(NAME, self.rank)


del MultiProcessTestCase
