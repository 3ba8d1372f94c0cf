"""Event loops with nothing left to happen."""

from __future__ import annotations

import asyncio
import threading

import torch
import torch.distributed as dist
from expectation import hang


def meet() -> None:
    """Let all ranks meet."""
    dist.all_reduce(torch.ones(4))


async def for_ever() -> None:
    """Wait for an event that nobody sets."""
    await asyncio.Event().wait()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_event_that_nobody_sets(world) -> None:
    """The primary's restore awaits an event that nobody sets.

    Source: https://github.com/google/orbax/issues/3181 (the read is a coroutine)
    """
    if world.is_primary:
        asyncio.run(for_ever())
    meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2])
def test_consumer_outlives_its_producer(world) -> None:
    """A producer task ends early, the consumer awaits the queue for ever.

    Source: field report class: a task that ends with an exception nobody retrieves
    """

    async def consume() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        await asyncio.gather(queue.put(1), queue.get(), queue.get(), return_exceptions=True)

    if world.rank == 1:
        asyncio.run(consume())
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0], where=".result()")
def test_result_awaited_on_its_own_loop(world) -> None:
    """A callback blocks the loop on a future that only this loop could complete.

    Source: https://github.com/empicano/aiomqtt/issues/174
    """

    async def block() -> None:
        loop = asyncio.get_running_loop()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

    if world.rank == 1:
        asyncio.run(block())
    meet()


@hang("stuck", ranks=3, backend="none", culprits=[2], waiting=[])
def test_waits_for_a_loop_in_a_thread(world) -> None:
    """One rank waits for a coroutine on a loop in a thread; the others have returned.

    Source: https://github.com/python/asyncio/issues/312
    """
    if world.rank == 2:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(for_ever(), loop).result()
