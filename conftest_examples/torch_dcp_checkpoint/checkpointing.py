"""Save and load a training state, every rank its shard."""

import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def save(path, state):
    """Write `state` below `path`, and a marker once every rank has written its part."""
    dcp.save(state, checkpoint_id=path)
    dist.barrier()
    if dist.get_rank() == 0:
        (path / "COMPLETE").touch()


def load(path, state):
    """Fill `state` from the checkpoint at `path`."""
    if not (path / "COMPLETE").exists():
        raise FileNotFoundError(path / "COMPLETE")
    dcp.load(state, checkpoint_id=path)
