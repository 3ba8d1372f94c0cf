"""Several groups, threads and works, used as they should be; some look as if they were not."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from expectation import innocent

from pytest_multihost import World


@innocent()
def test_two_groups_in_one_order(world: World) -> None:
    """Asynchronous, waited for in opposite orders."""
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    works = [dist.all_reduce(torch.ones(2), group=each, async_op=True) for each in (one, two)]
    for work in works if world.rank else works[::-1]:
        work.wait()


@innocent(ranks=4)
def test_rows_and_columns(world: World) -> None:
    """A mesh of two by two: rows first, then columns, on all ranks."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=rows[world.rank // 2])
        dist.all_reduce(torch.ones(2), group=columns[world.rank % 2])


@innocent()
def test_a_group_for_the_processor(world: World) -> None:
    """Made for gloo by name: it stays on the CPU, and its order with others is free."""
    control = dist.new_group([0, 1], backend="gloo")
    x, y = torch.ones(2), torch.ones(2)
    if world.rank == 0:
        works = [dist.all_reduce(x, async_op=True)]
        works.append(dist.all_reduce(y, group=control, async_op=True))
    else:
        works = [dist.all_reduce(y, group=control, async_op=True)]
        works.append(dist.all_reduce(x, async_op=True))
    for work in works:
        work.wait()


@innocent(ranks=3)
def test_pairs_along_a_line(world: World) -> None:
    """Each rank its lower pair first: neighbours share one group alone."""
    lower, upper = dist.new_group([0, 1]), dist.new_group([1, 2])
    if world.rank < 2:
        dist.all_reduce(torch.ones(1), group=lower)
    if world.rank > 0:
        dist.all_reduce(torch.ones(1), group=upper)


@innocent(ranks=3)
def test_pairs_along_a_line_from_the_other_end(world: World) -> None:
    """The other way round there is no cycle, either."""
    lower, upper = dist.new_group([0, 1]), dist.new_group([1, 2])
    if world.rank > 0:
        dist.all_reduce(torch.ones(1), group=upper)
    if world.rank < 2:
        dist.all_reduce(torch.ones(1), group=lower)


@innocent()
def test_a_thread_with_a_group_of_its_own(world: World) -> None:
    """The checkpoint's thread has a group for itself, for the CPU."""
    own = dist.new_group([0, 1], backend="gloo")

    def save() -> None:
        for _ in range(5):
            dist.all_reduce(torch.ones(2), group=own)

    saver = threading.Thread(target=save)
    saver.start()
    for _ in range(5):
        dist.all_reduce(torch.ones(2))
    saver.join()


@innocent()
def test_one_thread_after_the_other(world: World) -> None:
    """The main thread joins before it goes on in the same group."""
    saver = threading.Thread(target=lambda: dist.all_reduce(torch.ones(2)))
    saver.start()
    saver.join()
    dist.barrier()


@innocent()
def test_a_queue_to_one_worker(world: World) -> None:
    """All calls are made by one thread, whoever asks for them."""
    asked: queue.Queue[torch.Tensor | None] = queue.Queue()

    def work() -> None:
        while (x := asked.get()) is not None:
            dist.all_reduce(x)

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(4):
        asked.put(torch.ones(2))
    asked.put(None)
    worker.join()


@innocent()
def test_a_pool_of_one_thread(world: World) -> None:
    """Its results are waited for before the main thread calls anything."""
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            pool.submit(dist.barrier).result()
            dist.all_reduce(torch.ones(1))


@innocent()
def test_turns_by_events(world: World) -> None:
    """The second thread begins when the first says that it is through."""
    through = threading.Event()

    def second() -> None:
        through.wait()
        dist.all_reduce(torch.ones(1))

    thread = threading.Thread(target=second)
    thread.start()
    dist.all_reduce(torch.ones(1))
    through.set()
    thread.join()


@innocent()
def test_launched_here_waited_for_there(world: World) -> None:
    """The order is that of the launches, all in one thread."""
    works: queue.Queue[object] = queue.Queue()

    def wait() -> None:
        while (work := works.get()) is not None:
            work.wait()  # type: ignore[attr-defined]

    waiter = threading.Thread(target=wait)
    waiter.start()
    for _ in range(4):
        works.put(dist.all_reduce(torch.ones(1), async_op=True))
    works.put(None)
    waiter.join()


@innocent(ranks=3)
def test_two_threads_that_call_the_same(world: World) -> None:
    """At a time, and in any order: either call matches the other's on another rank."""
    time.sleep(0.4 * world.rank)

    def work(after_s: float) -> None:
        time.sleep(after_s)
        dist.all_reduce(torch.ones(1))

    workers = [threading.Thread(target=work, args=(each * 0.2,)) for each in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
