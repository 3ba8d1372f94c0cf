"""Programs of torchmetrics that look like hangs for a while, and end well."""

from __future__ import annotations

import time

import torch.distributed as dist
from expectation import innocent
from torchmetrics import MeanMetric

LATE_S = 3.0
"""Longer than a proof takes."""


@innocent(ranks=3, backend="gloo")
def test_a_metric_is_computed_locally_by_the_main_process(world) -> None:
    """sync_on_compute=False makes compute() local, and slow here."""
    mean = MeanMetric(sync_on_compute=False)
    mean.update(1.0)
    if world.is_primary:
        time.sleep(LATE_S)
        mean.compute()
    dist.barrier()


@innocent(ranks=3, backend="gloo")
def test_one_process_has_nothing_to_update_and_computes_late(world) -> None:
    """compute() synchronises on all processes, with or without samples."""
    mean = MeanMetric()
    if world.rank < 2:
        mean.update(1.0)
    else:
        time.sleep(LATE_S)
    mean.compute()
