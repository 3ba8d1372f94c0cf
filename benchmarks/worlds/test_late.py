"""Rank 0 is late for ever; of the plugin's dump it is written down how long it takes."""

import os
import time

import pytest


@pytest.mark.multihost(ranks=int(os.environ["RANKS"]), backend=os.environ["BACKEND"], timeout=100)
def test_one(world):
    world.barrier()
    if world.rank == 0:
        time.sleep(600)
    if os.environ["BACKEND"] == "gloo":
        import torch

        torch.distributed.all_reduce(torch.ones(3))
    world.barrier()
