"""Ranks that work: a collective and a little of their own, so often a second, with pauses."""

import os
import time

import pytest
import torch
import torch.distributed as dist

STEP_S = 0.01


@pytest.mark.multihost(ranks=4, backend="gloo", timeout=120)
def test_one(world, value):
    square = torch.ones(64, 64)
    end = time.monotonic() + STEP_S
    for _ in range(int(os.environ["STEPS"])):
        square = square @ square / 64
        dist.all_reduce(square)
        square = square / world.size
        time.sleep(max(0.0, end - time.monotonic()))
        end += STEP_S
