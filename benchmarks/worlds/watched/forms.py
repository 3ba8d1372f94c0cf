"""Tests that start the ranks of job.py, in the ways in which existing suites do."""

import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import job
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.testing._internal.common_distributed import MultiProcessTestCase

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(job.SIZE))
HERE = Path(__file__).parent


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def tasks():
    port = free_port()
    return [(rank, job.SIZE, port) for rank in range(job.SIZE)]


def test_spawn():
    mp.spawn(job.worker, args=(job.SIZE, free_port()), nprocs=job.SIZE)


def test_fork():
    mp.start_processes(
        job.worker, args=(job.SIZE, free_port()), nprocs=job.SIZE, start_method="fork"
    )


def test_torchrun():
    done = subprocess.run(
        [*TORCHRUN, "--master-port", str(free_port()), str(HERE / "job.py")],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0


def test_pool_spawn():
    with multiprocessing.get_context("spawn").Pool(job.SIZE) as pool:
        pool.starmap(job.worker, tasks(), chunksize=1)  # HERE task


def test_pool_forkserver():
    with multiprocessing.get_context("forkserver").Pool(job.SIZE) as pool:
        found = [pool.apply_async(job.worker, each) for each in tasks()]
        for each in found:
            each.wait()  # HERE task
            assert each.successful()


def test_process():
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=job.worker, args=each) for each in tasks()]
    for each in started:
        each.start()
    for each in started:
        each.join()
    assert all(each.exitcode == 0 for each in started)


def test_queue():
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    started = [context.Process(target=job.answering, args=(*each, answers)) for each in tasks()]
    for each in started:
        each.start()
    assert sorted(answers.get() for _ in started) == [0, 1, 2]  # HERE task


class TestCase(MultiProcessTestCase):
    world_size = job.SIZE

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_case(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        job.body(self.rank, self.world_size)


def test_outer():
    rank = int(os.environ.get("RANK", os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", os.environ["OUTER_PORT"])
    dist.init_process_group("gloo", rank=rank, world_size=job.SIZE)
    job.body(rank, job.SIZE)
