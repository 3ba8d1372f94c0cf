"""A test with STEPS times some collectives, a file and a barrier, for sweeps to disturb."""

import os

import pytest
import torch
import torch.distributed as dist

STEPS = int(os.environ["STEPS"])


def step():
    dist.all_reduce(torch.ones(8))


def save(world, file):
    if world.rank == 0:
        file.write_text("x")
    dist.barrier()


@pytest.mark.multihost(ranks=4, backend="gloo")
def test_one(world, shared_tmp_path):
    for number in range(STEPS):
        step()
        save(world, shared_tmp_path / f"step_{number}")
        (shared_tmp_path / f"step_{number}").read_text()
        step()
        dist.barrier()
