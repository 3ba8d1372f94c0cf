"""Timeouts of simulated groups strike on the clock that jumps, and NCCL's watchdog ends a rank."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py

SLOW_CHECKPOINT = """
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

def world_of(semantics):
    return pytest.mark.multihost(
        ranks=2, backend="simulated", clock="jump", semantics=semantics, timeout=3600)

def saves_for_15_minutes(world, **settings):
    dist.init_process_group("nccl", **settings)
    dist.all_reduce(torch.ones(1))
    if world.rank == 0:
        time.sleep(900)
    dist.barrier()

@pytest.mark.multihost_expect(kind="died", culprits=[1])
@world_of("nccl")
def test_nccl_takes_the_process_down(world):
    saves_for_15_minutes(world)

@world_of("nccl")
def test_a_longer_timeout_is_enough(world):
    saves_for_15_minutes(world, timeout=timedelta(hours=1))

@world_of("gloo")
def test_gloo_waits_for_30_minutes(world):
    saves_for_15_minutes(world)

@world_of("nccl")
def test_a_wait_that_blocks_raises(world, monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    if world.rank == 0:
        saves_for_15_minutes(world)
    else:
        with pytest.raises(RuntimeError, match="Timed out waiting 600000ms for barrier"):
            saves_for_15_minutes(world)

@world_of("gloo")
def test_a_timeout_of_gloo_strikes_in_its_time(world):
    group = dist.new_group(timeout=timedelta(minutes=10))
    began_s = time.monotonic()
    if world.rank == 0:
        time.sleep(900)
    else:
        with pytest.raises(RuntimeError, match="Timed out waiting 600000ms"):
            dist.all_reduce(torch.ones(1), group=group)
        assert 599 < time.monotonic() - began_s < 700

@world_of("gloo")
def test_a_store_gives_up_in_its_time(world):
    store = dist.distributed_c10d._get_default_store()
    if world.rank == 1:
        with pytest.raises(dist.DistStoreError, match="600000ms"):
            store.wait(["never"], timedelta(minutes=10))
"""


@pytest.mark.program(SLOW_CHECKPOINT)
def test_a_rank_that_is_late_by_fifteen_minutes_ends_only_a_job_of_nccl(worlds: Worlds) -> None:
    """After torch's own 10 minutes; with a longer timeout, or gloo's 30 minutes, the job goes on.

    As in torchtune#2093, where rank 0 wrote a checkpoint for longer than that.
    """
    worlds.run.assert_outcomes(passed=6)
