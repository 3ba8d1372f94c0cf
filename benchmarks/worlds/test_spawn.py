"""torch.multiprocessing.spawn in a test."""

import os

import rank
import torch.multiprocessing


def test_one(tmp_path, value):
    size = int(os.environ["RANKS"])
    torch.multiprocessing.spawn(rank.main, (size, value, str(tmp_path), 0), nprocs=size)
