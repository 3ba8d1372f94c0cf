"""Ranks that use CPU or re-arm short waits for ever: told by time alone."""

from __future__ import annotations

import contextlib
import queue
import threading
import time

import torch
import torch.distributed as dist
from expectation import hang

BY_DEADLINE = ("deadline",)


def meet() -> None:
    """Let all ranks meet."""
    dist.all_reduce(torch.ones(4))


@hang("livelock", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_DEADLINE)
def test_spins_on_a_flag(world) -> None:
    """A rank spins on a flag that nothing sets.

    Source: https://github.com/ml-explore/mlx/pull/3654 (busy poll without a timeout)
    """
    flags = {"done": False}
    if world.rank == 1:
        while not flags["done"]:
            pass
    meet()


@hang("livelock", ranks=4, backend="gloo", culprits=[0], waiting=[1, 2, 3], by=BY_DEADLINE)
def test_polls_for_a_file(world, shared_tmp_path) -> None:
    """The primary polls for a file that no rank writes.

    Source: https://github.com/mosaicml/composer/pull/2071 (busy wait for a local rank 0)
    """
    if world.is_primary:
        while not (shared_tmp_path / "done").exists():
            time.sleep(0.05)
    meet()


@hang("livelock", ranks=3, backend="none", culprits=[2], waiting=[0, 1], by=BY_DEADLINE)
def test_waits_in_slices(world) -> None:
    """A rank waits for an event in slices of 50 ms, for ever.

    Source: field report class: wait with a timeout in a loop, to stay interruptible
    """
    if world.rank == 2:
        event = threading.Event()
        while not event.wait(0.05):
            pass
    world.barrier()


@hang(
    "straggler",
    ranks=2,
    backend="gloo",
    culprits=[1],
    waiting=None,
    by=BY_DEADLINE,
)
def test_polls_asynchronous_work(world) -> None:
    """Rank 0 polls for the completion of work that rank 1, asleep, never joins.

    Source: https://github.com/ray-project/ray/pull/64928 (launch counts that do not move)
    """
    if world.rank == 1:
        time.sleep(600)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    while not work.is_completed():
        time.sleep(0.01)


@hang("livelock", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_DEADLINE)
def test_end_of_a_chain_retries_for_ever(world, shared_tmp_path) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which retries an open that always fails.

    Source: field report class: endless retries without a limit or a message
    """
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    while world.rank == 2:
        try:
            (shared_tmp_path / "shard").read_bytes()
        except OSError:
            time.sleep(0.02)
    if world.rank == 1:
        dist.barrier(second)
    dist.barrier(first)


@hang("livelock", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=BY_DEADLINE)
def test_asks_a_queue_twice_a_second(world) -> None:
    """The primary takes from a queue that nothing fills, half a second at a time.

    Source: field report class: queue.get(timeout=...) in a loop, to stay interruptible
    """
    asked = queue.Queue()
    while world.is_primary:
        with contextlib.suppress(queue.Empty):
            asked.get(timeout=0.5)
    meet()


@hang("livelock", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_DEADLINE)
def test_looks_every_other_second(world, shared_tmp_path) -> None:
    """A rank looks for a marker at long intervals, and it never comes.

    Source: https://github.com/mosaicml/composer/pull/2071 (the same, with a longer sleep)
    """
    while world.rank == 1 and not (shared_tmp_path / "done").exists():
        time.sleep(1.5)
    meet()
