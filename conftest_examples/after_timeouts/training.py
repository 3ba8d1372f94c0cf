"""Train together; a rank that loses the others saves what it has, and ends."""

import torch
import torch.distributed as dist


def train(world, folder, *, steps=5):
    """Return the step at which this rank has saved what it has.

    Args:
        world: The ranks.
        folder: Where checkpoints go.
        steps: How many there are.
    """
    weights = torch.ones(4)
    for step in range(steps):
        world.sync_point(f"step {step}")
        try:
            dist.all_reduce(weights)
        except RuntimeError:  # of gloo: a lost connection, or 30 minutes without an answer
            steps = step
            break
    torch.save(weights, folder / f"rank-{world.rank}.pt")
    return steps
