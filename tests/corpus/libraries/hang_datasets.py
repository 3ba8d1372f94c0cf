"""Programs of datasets whose shards differ in length, or are made by one process for ever."""

from __future__ import annotations

import time

import datasets
import torch
import torch.distributed as dist
from datasets.distributed import split_dataset_by_node
from expectation import hang
from mishaps import FOREVER_S
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0], waits_at="model(batch[")
def test_a_filter_leaves_shards_of_different_lengths(world) -> None:
    """A filter after split_dataset_by_node leaves one process with fewer batches.

    Source: https://github.com/huggingface/datasets/issues/6719
    """
    whole = datasets.Dataset.from_dict({"x": list(range(16))}).to_iterable_dataset(num_shards=2)
    mine = split_dataset_by_node(whole, world.rank, world.size).filter(lambda row: row["x"] < 12)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for batch in DataLoader(mine.with_format("torch"), batch_size=2):
        model(batch["x"].float()[:, None]).sum().backward()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], waits_at="model(batch[")
def test_shards_do_not_divide_by_the_number_of_processes(world) -> None:
    """An iterable dataset gives one process fewer samples.

    Source: https://github.com/huggingface/datasets/issues/6437
    """
    whole = datasets.Dataset.from_dict({"x": list(range(14))}).to_iterable_dataset()
    mine = split_dataset_by_node(whole, world.rank, world.size)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for batch in DataLoader(mine.with_format("torch"), batch_size=1):
        model(batch["x"].float()[:, None]).sum().backward()


def tokenize(row: dict[str, int]) -> dict[str, int]:
    """Wait for a resource of the main process that never comes."""
    time.sleep(FOREVER_S)
    return row


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2],
    where="time.sleep(FOREVER_S)",
)
def test_the_main_process_maps_for_ever_before_the_barrier(world) -> None:
    """The others wait until the main process has filled the cache.

    Source: https://github.com/huggingface/accelerate/issues/1752
    """
    if world.is_primary:
        datasets.Dataset.from_dict({"x": [1, 2, 3]}).map(tokenize)
    dist.barrier()
