"""Restore a value that is spread over all ranks."""

import storage
import torch
import torch.distributed as dist


def restore():
    """Return the sum of all shards, on every rank."""
    value = torch.tensor(storage.read_shard(dist.get_rank()))
    dist.all_reduce(value)
    return value
