"""One group used by two threads at a time, in an order that only the clock makes."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist
from expectation import guilty

from pytest_multihost import World

FIRST_S, BEHIND_S = 0.2, 0.4
"""How long the second thread waits, and how far the last rank is behind the others."""


@guilty(
    "threads",
    "dist.all_reduce(saved)",
    "dist.barrier()",
    like="KempnerForge pull 105: the main thread's barrier and DCP's background thread",
)
def test_a_background_checkpoint_beside_a_barrier(world: World) -> None:
    """The saving thread agrees on the plan in the world's group, and so does the main thread."""
    time.sleep(BEHIND_S * world.rank)
    saved = torch.ones(3)

    def save() -> None:
        dist.all_reduce(saved)

    saver = threading.Thread(target=save)
    saver.start()
    time.sleep(FIRST_S)
    dist.barrier()
    saver.join()


@guilty(
    "threads",
    "dist.all_gather_object",
    "dist.all_reduce(loss)",
    like="NVIDIA/nccl issue 1174: operations of two threads need a lock and one order",
)
def test_a_thread_that_logs(world: World) -> None:
    """The logging thread gathers while the main thread trains."""
    time.sleep(BEHIND_S * world.rank)
    loss = torch.ones(1)

    def log() -> None:
        dist.all_gather_object([None] * world.size, {"rank": world.rank})

    logger = threading.Timer(FIRST_S, log)
    logger.start()
    dist.all_reduce(loss)
    logger.join()


@guilty("threads", "dist.broadcast(batch", "dist.all_reduce(gradient)")
def test_a_loader_that_broadcasts(world: World) -> None:
    """The prefetching thread sends the next batch through the group of the gradients."""
    time.sleep(BEHIND_S * world.rank)
    batch, gradient = torch.ones(4), torch.ones(4)

    def prefetch() -> None:
        time.sleep(FIRST_S)
        dist.broadcast(batch, src=0)

    loader = threading.Thread(target=prefetch)
    loader.start()
    dist.all_reduce(gradient)
    loader.join()


@guilty("threads", "dist.all_reduce(torch.ones(size))", ranks=3)
def test_two_workers_in_one_line(world: World) -> None:
    """Two threads run the same function, for tensors of two sizes."""
    time.sleep(BEHIND_S * world.rank)

    def work(after_s: float, size: int) -> None:
        time.sleep(after_s)
        dist.all_reduce(torch.ones(size))

    sizes = ((0.0, 1), (FIRST_S, 9))
    workers = [threading.Thread(target=work, args=each) for each in sizes]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
