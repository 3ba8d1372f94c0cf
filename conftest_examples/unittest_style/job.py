"""A job that is started by torchrun."""

import torch
import torch.distributed as dist


def start():
    """Join the job's process group: everything it needs is in the environment."""
    dist.init_process_group("gloo")


def mean(value):
    """Return the mean of `value` over all ranks."""
    total = torch.tensor(float(value))
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def stop():
    """Leave the process group."""
    dist.destroy_process_group()
