"""jax's own harness: one set of processes for all tests of the file; it knows no pytest."""

import os

import work
from jax._src import test_multiprocess


class TestOne(test_multiprocess.MultiProcessTest):
    pass


def check(value):
    size = int(os.environ["RANKS"])
    return lambda self: self.assertEqual(work.work(size, value), size * value)


for number in range(int(os.environ["TESTS"])):
    setattr(TestOne, f"test_{number}", check(number + 0.5))

if __name__ == "__main__":
    test_multiprocess.main()
