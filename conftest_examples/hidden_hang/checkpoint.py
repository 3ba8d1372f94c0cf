"""Save the weights of a training job that runs on several ranks."""

import torch
import torch.distributed as dist


def save(weights, path):
    """Write the weights on the primary; a full disk must not end the training."""
    if dist.get_rank() == 0:
        part = path.with_suffix(".part")
        try:
            torch.save(weights, part)
            part.rename(path)
        except (OSError, RuntimeError):
            return  # the next checkpoint may have more luck
    dist.barrier()


def save_together(weights, path):
    """Do the same, and return on every rank why the primary could not save; None if it could."""
    reasons = [None]
    if dist.get_rank() == 0:
        part = path.with_suffix(".part")
        try:
            torch.save(weights, part)
            part.rename(path)
        except (OSError, RuntimeError) as error:
            reasons = [repr(error)]
    dist.broadcast_object_list(reasons, src=0)
    return reasons[0]
