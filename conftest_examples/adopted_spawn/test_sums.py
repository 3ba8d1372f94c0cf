"""Tests that know nothing of this plugin."""

import multiprocessing
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def add(rank, size, store, absent=-1):
    """Add up the ranks' numbers, in a process that a test starts."""
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    total = torch.tensor(float(rank))
    if rank == absent:
        time.sleep(100_000)
    dist.all_reduce(total)
    assert total.item() == sum(range(size))
    dist.destroy_process_group()


def test_spawned_processes_add_up(tmp_path):
    """Three ranks that torch starts."""
    mp.spawn(add, args=(3, tmp_path / "store"), nprocs=3)


def test_joined_processes_add_up(tmp_path):
    """Two ranks that the test starts itself."""
    context = multiprocessing.get_context("spawn")
    store = tmp_path / "store"
    processes = [context.Process(target=add, args=(rank, 2, store)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_rank_stays_away(tmp_path):
    """Nobody ends this one."""
    mp.spawn(add, args=(2, tmp_path / "store", 1), nprocs=2)
