"""torch's MultiProcessTestCase: ranks are spawned for each test."""

import os

import torch.distributed as dist
import work
from torch.testing._internal.common_distributed import MultiProcessTestCase

SIZE = int(os.environ["RANKS"])


class TestOne(MultiProcessTestCase):
    world_size = SIZE

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def check(self, value):
        store = dist.FileStore(self.file_name, SIZE)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=SIZE)
        assert work.work(SIZE, value) == SIZE * value


for number in range(int(os.environ["TESTS"])):
    setattr(TestOne, f"test_{number}", lambda self, value=number + 0.5: self.check(value))
del MultiProcessTestCase
