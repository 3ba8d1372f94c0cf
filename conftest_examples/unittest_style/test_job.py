import unittest

import job
import pytest

from pytest_multihost import current_world


@pytest.mark.multihost(backend="none", timeout=60)
class TestJob(unittest.TestCase):
    def setUp(self):
        job.start()
        self.addCleanup(job.stop)

    def test_the_mean_is_the_same_everywhere(self):
        world = current_world()
        self.assertEqual(job.mean(world.rank), (world.size - 1) / 2)

    def test_every_rank_is_told_who_it_is(self):
        world = current_world()
        self.assertEqual(world.gather(world.rank), list(range(world.size)))
