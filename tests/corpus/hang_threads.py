"""Threads that end too early, never, or stand where the main thread should."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from expectation import hang


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang("straggler", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], where="batches.get()")
def test_producer_thread_died(world) -> None:
    """The prefetching thread died of an error, the rank waits for the next batch.

    Source: https://github.com/RolnickLab/ami-data-companion/issues/140
    """
    batches: queue.Queue[int] = queue.Queue()

    def produce() -> None:
        with contextlib.suppress(ValueError):
            if world.rank == 3:
                raise ValueError("truncated record")
            batches.put(1)

    threading.Thread(target=produce).start()
    batches.get()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_notified_before_it_waits(world) -> None:
    """A condition is notified before the rank waits for it.

    Source: field report class: lost wake-up
    """
    if world.rank == 1:
        condition = threading.Condition()
        with condition:
            condition.notify_all()
        with condition:
            condition.wait()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_task_waits_for_its_own_pool(world) -> None:
    """A task of a pool of one thread submits another task and waits for it.

    Source: https://github.com/django/asgiref/issues/527 (single thread executor already in use)
    """
    if world.is_primary:
        pool = ThreadPoolExecutor(1)
        pool.submit(lambda: pool.submit(time.time).result()).result()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_joins_a_thread_in_a_collective(world) -> None:
    """Rank 0's main thread joins the thread that is in the collective, rank 1 sleeps.

    Source: https://github.com/horovod/horovod/issues/3352 (the loop runs in the background)
    """
    if world.rank == 1:
        time.sleep(600)
    thread = threading.Thread(target=meet)
    thread.start()
    thread.join()


@hang("deadlock", ranks=2, backend="gloo")
def test_checkpoint_thread_in_another_group(world) -> None:
    """Rank 0 joins its checkpoint thread, which waits in a second group for rank 1.

    Source: https://github.com/marin-community/marin/issues/8534 (checkpoint against step)
    """
    second = dist.new_group()
    if world.is_primary:
        thread = threading.Thread(target=meet, args=(second,))
        thread.start()
        thread.join()
    meet()
    meet(second)


@hang(
    "mismatch",
    ranks=2,
    backend="gloo",
    by=("mismatch", "proof"),
    also=[{"kind": "deadlock", "culprits": []}],
    why="two calls are in flight on each rank, in opposite order",
)
def test_collectives_of_two_threads_in_one_group(world) -> None:
    """A second thread uses the group of the main thread; which comes first differs.

    Source: https://github.com/NVIDIA/nccl/issues/783
    """

    def gather() -> None:
        dist.broadcast(torch.ones(4), src=1)

    def scatter() -> None:
        dist.broadcast(torch.ones(4), src=0)

    order = [gather, scatter] if world.is_primary else [scatter, gather]
    thread = threading.Thread(target=order[0])
    thread.start()
    time.sleep(0.5)
    order[1]()
    thread.join()


@hang("stuck", ranks=1, backend="none", culprits=[0], waiting=[])
def test_event_that_nobody_sets(world) -> None:
    """A world of one rank waits for an event that nobody sets.

    Source: field report class: the thread that was to signal was never started
    """
    threading.Event().wait()
