"""Pipelines of torch with a stage that is late."""

from __future__ import annotations

import time

import torch
from expectation import innocent
from hang_pipelining import stage
from torch.distributed.pipelining import ScheduleGPipe

LATE_S = 3.0
"""Longer than a proof takes."""


@innocent(ranks=3, backend="gloo")
def test_the_middle_stage_of_a_pipeline_is_slow(world) -> None:
    """The stages before and after wait for it."""
    mine = stage(world, torch.nn.Linear(4, 4))
    schedule = ScheduleGPipe(mine, 3, loss_fn=lambda out, target: (out - target).sum())
    time.sleep(LATE_S * (world.rank == 1))
    if world.rank == 0:
        schedule.step(torch.ones(6, 4))
    elif world.rank == 2:
        schedule.step(target=torch.ones(6, 4))
    else:
        schedule.step()
