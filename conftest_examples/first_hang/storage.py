"""Where the shards of a checkpoint are kept."""

import time


def read_shard(rank):
    """Return the numbers that belong to `rank`."""
    if rank == 0:
        time.sleep(600)  # stands for a read from a file system that has stopped answering
    return [float(rank)] * 3
