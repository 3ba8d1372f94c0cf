"""A class whose tests run in a pool of processes, as DeepSpeed's `DistributedTest`."""

import inspect
import multiprocessing
import os

import pytest
import torch.distributed as dist


class DistributedTest:
    """Its methods run in each of `world_size` processes; a list runs them once for each size."""

    is_dist_test = True
    world_size = 2

    def __call__(self, request):
        """Run a test."""
        self.test = getattr(self, request.function.__name__)
        self.values = self._get_fixture_kwargs(request, self.test)
        sizes = [self.world_size] if isinstance(self.world_size, int) else self.world_size
        for size in sizes:
            self._launch_procs(size, str(request.getfixturevalue("tmp_path") / f"store-{size}"))

    def _get_fixture_kwargs(self, request, function):
        return {
            name: request.getfixturevalue(name) for name in inspect.signature(function).parameters
        }

    def _launch_procs(self, size, store):
        pool = multiprocessing.get_context("spawn").Pool(size)
        ended = pool.starmap_async(self._dist_run, [(rank, size, store) for rank in range(size)])
        try:
            ended.get(timeout=600)
        except multiprocessing.TimeoutError:
            pytest.exit("Test hanged, exiting")
        pool.close()

    def _dist_run(self, rank, size, store):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
        self.test(**self.values)
