"""Save the weights of a training job that runs on several ranks."""

import torch
import torch.distributed as dist


def save(weights, path):
    """Write the weights on the primary; when this returns, every rank may read them."""
    if dist.get_rank() == 0:
        part = path.with_suffix(".part")
        torch.save(weights, part)
        part.rename(path)
    dist.barrier()


def save_together(weights, path):
    """Do the same; if the primary fails, every rank raises."""
    error = None
    if dist.get_rank() == 0:
        part = path.with_suffix(".part")
        try:
            torch.save(weights, part)
            part.rename(path)
        except (OSError, RuntimeError) as caught:
            error = caught
    reasons = [None if error is None else repr(error)]
    dist.broadcast_object_list(reasons, src=0)
    if error is not None:
        raise error
    if reasons[0] is not None:
        raise RuntimeError(f"rank 0 could not save {path}: {reasons[0]}")
