"""Train in a pipeline; a rank that loses its neighbour saves what it has, and ends."""

import torch
import torch.distributed as dist


def train(world, folder, *, steps=5):
    """Return the step at which this rank has saved what it has.

    Args:
        world: The ranks, each a stage of the pipeline.
        folder: Where checkpoints go.
        steps: How many there are.
    """
    activations = torch.ones(4)
    for step in range(steps):
        world.sync_point(f"step {step}")
        try:
            if not world.is_primary:
                dist.recv(activations, src=world.rank - 1)
            if world.rank < world.size - 1:
                dist.send(activations, dst=world.rank + 1)
        except RuntimeError:  # of gloo: a lost connection, or 30 minutes without an answer
            steps = step
            break
    torch.save(activations, folder / f"rank-{world.rank}.pt")
    return steps
