"""Tests that know nothing of this plugin."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def add(rank, size, store):
    """Add up the ranks' numbers, in a process that `mp.spawn` starts."""
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    assert total.item() == sum(range(size))
    dist.destroy_process_group()


def test_spawned_processes_add_up(tmp_path):
    """This one runs in pytest's process, and starts three ranks."""
    mp.spawn(add, args=(3, tmp_path / "store"), nprocs=3)


@pytest.mark.nprocs(2)
def test_ranks_add_up():
    """This one runs in each rank."""
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
