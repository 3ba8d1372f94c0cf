"""Programs of datasets that look like hangs for a while, and end well."""

from __future__ import annotations

import time

import datasets
import torch
import torch.distributed as dist
from datasets.distributed import split_dataset_by_node
from expectation import innocent
from torch.nn.parallel import DistributedDataParallel

LATE_S = 3.0
"""Longer than a proof takes."""


@innocent(ranks=2, backend="gloo")
def test_processes_agree_when_their_shards_end(world) -> None:
    """Shards differ in length, and a flag is reduced in each step.

    Source: https://github.com/huggingface/datasets/issues/6623
    """
    whole = datasets.Dataset.from_dict({"x": list(range(16))}).to_iterable_dataset(num_shards=2)
    mine = split_dataset_by_node(whole, world.rank, world.size).filter(lambda row: row["x"] < 12)
    model, rows = DistributedDataParallel(torch.nn.Linear(1, 1)), iter(mine)
    while True:
        row = next(rows, None)
        has_more = torch.tensor(float(row is not None))
        dist.all_reduce(has_more, op=dist.ReduceOp.MIN)
        if not has_more:
            break
        time.sleep(0.4 * world.rank)
        model(torch.tensor([[float(row["x"])]])).sum().backward()


def slowly(row: dict[str, int]) -> dict[str, int]:
    """Take a while for each row."""
    time.sleep(LATE_S / 6)
    return row


@innocent(ranks=2, backend="gloo")
def test_the_main_process_maps_before_the_barrier(world) -> None:
    """The other waits until two child processes have filled the cache."""
    if world.is_primary:
        datasets.Dataset.from_dict({"x": list(range(12))}).map(slowly, num_proc=2)
    dist.barrier()
