"""torchmetrics: compute() synchronises, and not all processes call it alike."""

from __future__ import annotations

import time

import torch
from expectation import hang
from mishaps import FOREVER_S
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAUROC


@hang(
    "finished", ranks=4, backend="gloo", culprits=[1, 2, 3], waiting=[0], waits_at="mean.compute()"
)
def test_only_the_main_process_computes(world) -> None:
    """compute() below rank_zero_only.

    Source: https://github.com/Lightning-AI/torchmetrics/issues/2684
    """
    mean = MeanMetric()
    mean.update(float(world.rank))
    if world.is_primary:
        mean.compute()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], waits_at="area.compute()")
def test_one_process_has_nothing_to_compute(world) -> None:
    """A process without samples skips compute().

    Source: https://github.com/Lightning-AI/torchmetrics/issues/626
    """
    area = BinaryAUROC()
    for _ in range(2 - world.rank):
        area.update(torch.rand(4), torch.randint(0, 2, (4,)))
    if world.rank < 2:
        area.compute()


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0], waits_at="both.compute()")
def test_one_process_collects_fewer_metrics(world) -> None:
    """A collection holds a metric more on the primary, for logging.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/20223
    """
    metrics = {"mean": MeanMetric()} | ({"sum": SumMetric()} if world.is_primary else {})
    both = MetricCollection(metrics)
    both.update(1.0)
    both.compute()


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_one_process_is_late_for_compute(world) -> None:
    """A process prepares its predictions for ever.

    Source: https://github.com/Lightning-AI/torchmetrics/issues/813
    """
    mean = MeanMetric()
    if world.rank == 1:
        time.sleep(FOREVER_S)
    mean.update(1.0)
    mean.compute()


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[0],
    by=["mismatch", "proof"],
    outcome=["hung", "failed"],
    where="print(mean.compute())",
    sides={(0,): "print(mean.compute())", (1, 2): "model(torch.ones(2, 4)).sum().backward()"},
)
def test_the_main_process_computes_while_the_others_train(world) -> None:
    """compute() for the log of the main process alone, between two steps.

    Source: https://github.com/Lightning-AI/torchmetrics/issues/938
    """
    model, mean = DistributedDataParallel(torch.nn.Linear(4, 1)), MeanMetric()
    for step in range(4):
        model(torch.ones(2, 4)).sum().backward()
        mean.update(1.0)
        if step == 1 and world.is_primary:
            print(mean.compute())
