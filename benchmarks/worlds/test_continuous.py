"""torch's MultiProcContinuousTest: one set of ranks and one process group for the class."""

import os

import work
from torch.testing._internal.common_distributed import MultiProcContinuousTest

SIZE = int(os.environ["RANKS"])


class TestOne(MultiProcContinuousTest):
    world_size = SIZE

    @classmethod
    def backend_str(cls):
        return "gloo"

    @classmethod
    def device_type(cls):
        return "cpu"

    def check(self, value):
        assert work.work(SIZE, value) == SIZE * value


for number in range(int(os.environ["TESTS"])):
    setattr(TestOne, f"test_{number}", lambda self, value=number + 0.5: self.check(value))
del MultiProcContinuousTest
