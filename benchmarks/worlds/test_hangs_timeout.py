"""One of eight ways to hang, under pytest-timeout; torch.multiprocessing.spawn starts the ranks."""

import os

import hangs
import torch.distributed as dist
import torch.multiprocessing

NAME = os.environ["CASE"]


def main(rank, directory):
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=3)
    hangs.run(NAME, rank)
    hangs.tear_down(NAME, rank)


def test_one(tmp_path):
    torch.multiprocessing.spawn(main, (str(tmp_path),), nprocs=3)
