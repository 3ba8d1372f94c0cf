"""Pipelines of torch: a stage that stalls, does a step less, or only sends."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def stage(world, model: torch.nn.Module) -> PipelineStage:
    """Return this rank's stage of a pipeline."""
    return PipelineStage(model, world.rank, world.size, torch.device("cpu"))


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_the_middle_stage_of_a_pipeline_stalls(world) -> None:
    """The stages before and after wait for its activations and gradients.

    Source: https://github.com/pytorch/pytorch/issues/172668
    """
    mine = stage(world, torch.nn.Linear(4, 4))
    schedule = ScheduleGPipe(mine, 3, loss_fn=lambda out, target: (out - target).sum())
    if world.rank == 1:
        time.sleep(FOREVER_S)
    if world.rank == 0:
        schedule.step(torch.ones(6, 4))
    elif world.rank == 2:
        schedule.step(target=torch.ones(6, 4))
    else:
        schedule.step()


@hang(
    "finished", ranks=2, backend="gloo", culprits=[1], waiting=[0], waits_at="schedule.step(torch"
)
def test_the_last_stage_does_one_step_less(world) -> None:
    """The first stage waits for gradients of a step that the last never begins.

    Source: https://github.com/pytorch/torchtitan/issues/775
    """
    mine = stage(world, torch.nn.Linear(4, 4))
    schedule = Schedule1F1B(mine, 2, loss_fn=lambda out, target: (out - target).sum())
    for _ in range(3 - world.rank):
        if world.rank == 0:
            schedule.step(torch.ones(4, 4))
        else:
            schedule.step(target=torch.ones(4, 4))


@hang("deadlock", ranks=2, backend="gloo", waits_at="dist.send(")
def test_both_stages_send_before_they_receive(world) -> None:
    """Neighbouring stages both send large activations first.

    Source: https://github.com/pytorch/pytorch/issues/172668
    """
    other = 1 - world.rank
    dist.send(torch.ones(1 << 22), other)
    dist.recv(torch.empty(1 << 22), other)
