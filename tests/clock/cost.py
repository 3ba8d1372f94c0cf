"""Worlds that do nothing but wait, and one that never does: what jumps cost.

Run by `benchmarks/clock_cost.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


@pytest.mark.multihost(ranks=1, backend="none", timeout=86400)
def test_one_rank_sleeps(world) -> None:
    """It does so 300 times, for 10 s."""
    for _ in range(300):
        time.sleep(10)


def wait_for_rank_0(world, times: int, meet: Callable[[], object]) -> None:
    """Meet in a collective so often, each time after rank 0 has slept for 10 s."""
    for _ in range(times):
        if world.rank == 0:
            time.sleep(10)
        meet()


@pytest.mark.multihost(ranks=4, backend="gloo", timeout=86400)
def test_four_ranks_of_gloo_wait_for_one_that_sleeps(world) -> None:
    """In a collective, 100 times for 10 s."""
    import torch
    import torch.distributed as dist

    wait_for_rank_0(world, 100, lambda: dist.all_reduce(torch.ones(1)))


@pytest.mark.multihost(ranks=4, backend="jax", timeout=86400)
def test_four_ranks_of_jax_wait_for_one_that_sleeps(world) -> None:
    """In a collective, 20 times for 10 s."""
    import numpy as np
    from jax.experimental import multihost_utils

    wait_for_rank_0(world, 20, lambda: multihost_utils.process_allgather(np.ones(1)))


@pytest.mark.multihost(ranks=2, backend="gloo", timeout=86400)
def test_two_ranks_compute(world) -> None:
    """They multiply matrices and add them up, and read the clock now and then."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    a = torch.rand(256, 256)
    for _ in range(1500):
        a = (a @ a).div_(a.norm())
        time.monotonic()
        dist.all_reduce(a)
