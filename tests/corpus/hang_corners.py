"""Hangs from corners that the other files do not visit.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import multiprocessing
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import lru_cache

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import pytest_multihost

BY_RAISE = ("raise", "proof")
BY_DEADLINE = ("deadline",)
BY_EXIT = ("exit",)
BY_MISMATCH = ("mismatch", "proof")


def meet(group: object = None, size: int = 4) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(size), group=group)


def steps(count: int) -> None:
    """Train for some steps."""
    for _ in range(count):
        meet()


# Loops of unequal length


@hang("finished", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2])
def test_zip_stops_at_the_shorter_list(world) -> None:
    """Rank 3 has one label fewer, so its zip ends early."""
    labels = range(5 if world.rank < 3 else 4)
    for _ in zip(range(5), labels, strict=False):
        meet()


@hang("finished", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2])
def test_a_generator_returns_early(world) -> None:
    """The primary's generator meets a sentinel in its data."""

    def batches() -> Iterator[int]:
        for number in range(6):
            if world.is_primary and number == 4:
                return
            yield number

    for _ in batches():
        meet()


# Rank 2 gets the last broadcast from rank 0, its parent in gloo's tree, and leaves.
@hang("finished", ranks=3, backend="gloo", culprits=[1], waiting=[0])
def test_islice_by_a_count_of_its_own(world) -> None:
    """Each rank takes a tenth of its own file's records."""
    records = [100, 90, 100][world.rank]
    for _ in itertools.islice(itertools.count(), records // 10):
        dist.broadcast(torch.zeros(2), src=0)


@hang("finished", ranks=4, backend="gloo", culprits=[2], waiting=[0, 1, 3])
def test_a_sampler_that_drops_the_last(world) -> None:
    """One rank builds its sampler with drop_last, the loader's batches differ in number."""
    data = list(range(37))
    sampler = DistributedSampler(data, num_replicas=4, rank=world.rank, drop_last=world.rank == 2)  # type: ignore[arg-type]
    for _ in DataLoader(data, batch_size=1, sampler=sampler):  # type: ignore[arg-type]
        meet()


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_an_iterable_dataset_without_sharding(world) -> None:
    """The stream of rank 1 has fewer lines."""

    class Lines(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(8 - 3 * world.rank))

    for _ in DataLoader(Lines(), batch_size=2):
        meet()


@hang("finished", ranks=3, backend="gloo", culprits=[1, 2], waiting=[0])
def test_one_rank_retries_a_step_that_had_succeeded(world) -> None:
    """Rank 0 takes a step twice, and nobody is left to meet it."""
    steps(3)
    if world.rank == 0:
        steps(1)


@hang("finished", ranks=4, backend="gloo", culprits=[0], waiting=[1, 2, 3])
def test_stops_by_its_own_loss(world) -> None:
    """Early stopping looks at the local loss, which on rank 0 is small enough."""
    for step in range(6):
        loss = 0.0 if world.is_primary and step == 3 else 1.0
        if loss < 0.5:
            break
        meet()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_skips_a_batch_without_targets(world) -> None:
    """Rank 2 continues where its batch has no targets: one collective fewer at the end."""
    for step in range(4):
        if world.rank == 2 and step == 1:
            continue
        meet()


# Branches and errors


@hang("finished", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2])
def test_an_error_is_logged_and_the_step_skipped(world) -> None:
    """A handler around the step swallows rank 1's error before its collective."""
    for step in range(3):
        with contextlib.suppress(ZeroDivisionError):
            _ = 1 / (0 if world.rank == 1 and step == 2 else 1)
            meet()


@hang("raised", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_RAISE)
def test_system_exit_of_one_rank(world) -> None:
    """Rank 1 ends its script with an exit code."""
    steps(2)
    if world.rank == 1:
        sys.exit(3)
    meet()


@hang("raised", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], by=BY_RAISE)
def test_recursion_error_in_one_rank(world) -> None:
    """A nested structure of rank 3 is too deep."""

    def depth(number: int) -> int:
        return depth(number + 1)

    if world.rank == 3:
        depth(0)
    meet()


@hang("raised", ranks=2, backend="gloo", culprits=[0], waiting=[1], by=BY_RAISE)
def test_exception_group_of_one_rank(world) -> None:
    """The primary's task group fails."""

    async def fail() -> None:
        raise KeyError("shard")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(FOREVER_S))

    if world.is_primary:
        asyncio.run(both())
    meet()


@hang("raised", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_RAISE)
def test_raises_in_the_finally_of_a_loop(world) -> None:
    """Closing a file fails on rank 2 after its last step, before the barrier."""
    try:
        steps(2)
    finally:
        if world.rank == 2:
            raise OSError("cannot close")
    dist.barrier()


@hang("raised", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=BY_RAISE)
def test_assertion_between_two_different_collectives(world) -> None:
    """The primary checks a norm between gather and broadcast."""
    parts = [torch.zeros(1) for _ in range(3)] if world.is_primary else None
    dist.gather(torch.ones(1), parts, dst=0)
    assert not world.is_primary
    dist.broadcast(torch.zeros(1), src=0)


@hang("mismatch", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_MISMATCH)
def test_evaluates_by_a_clock_of_its_own(world) -> None:
    """Rank 1 thinks that it is time to evaluate, and gathers; the others train."""
    steps(2)
    if world.rank == 1:
        dist.all_gather([torch.zeros(4) for _ in range(3)], torch.ones(4))
    meet()


@hang(
    "mismatch", ranks=4, backend="gloo", culprits=[2], waiting=[0, 1, 3], by=("mismatch", "proof")
)
def test_barrier_of_a_logger(world) -> None:
    """Rank 2's logger has a barrier in its branch for warnings."""
    steps(3)
    if world.rank == 2:
        dist.barrier()
    meet()


@hang("mismatch", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=BY_MISMATCH)
def test_broadcasts_objects_where_others_reduce(world) -> None:
    """The primary alone believes that there is a new configuration to share."""
    meet()
    if world.is_primary:
        dist.broadcast_object_list([{"lr": 0.1}], src=0)
    meet()


@hang("finished", ranks=4, backend="gloo", culprits=[0], waiting=[1, 2, 3])
def test_all_but_the_primary_gather_objects(world) -> None:
    """The primary returns the metrics from its cache."""
    if world.is_primary:
        return
    dist.all_gather_object([None] * 4, {"loss": 1.0})


# Point to point


@hang("finished", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_a_pipeline_with_a_microbatch_fewer(world) -> None:
    """Stage 0 sends four microbatches, stage 1 receives five."""
    for _ in range(4 + world.rank):
        if world.rank == 0:
            dist.send(torch.ones(8), 1)
        else:
            dist.recv(torch.ones(8), 0)


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], where="time.sleep")
def test_the_middle_stage_of_a_pipeline_sleeps(world) -> None:
    """Stage 2 receives from stage 1, and stage 0 from stage 1's backward pass."""
    if world.rank == 1:
        time.sleep(FOREVER_S)
    dist.recv(torch.ones(2), 1)


@hang("deadlock", ranks=3, backend="gloo")
def test_all_receive_from_the_next(world) -> None:
    """Each rank receives from its right neighbour before it sends."""
    dist.recv(torch.ones(2), (world.rank + 1) % 3)
    dist.send(torch.ones(2), (world.rank - 1) % 3)


@hang("deadlock", ranks=2, backend="gloo")
def test_two_receives_with_batched_transfers(world) -> None:
    """Both ranks post a receive in their batch, and nobody a send."""
    other = 1 - world.rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(3), other)]):
        work.wait()


@hang("raised", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_RAISE)
def test_a_receiver_that_raised_before(world) -> None:
    """Rank 1 fails between two microbatches, rank 0 waits for the activation."""
    if world.rank == 1:
        dist.send(torch.ones(2), 0)
        raise ValueError("no labels")
    dist.recv(torch.ones(2), 1)
    dist.recv(torch.ones(2), 1)


# Groups


@hang("straggler", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], where="time.sleep")
def test_new_group_without_a_rank_that_is_no_member(world) -> None:
    """All ranks must create a group; rank 3, no member, is still loading."""
    if world.rank == 3:
        time.sleep(FOREVER_S)
    dist.new_group([0, 1])
    meet()


@hang("deadlock", ranks=4, backend="gloo")
def test_rows_before_columns_and_columns_before_rows(world) -> None:
    """On a mesh of 2 x 2, half of the ranks reduce over rows first and half over columns."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    own = [rows[world.rank // 2], columns[world.rank % 2]]
    for group in own if world.rank in (0, 3) else reversed(own):
        meet(group)


@hang("straggler", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], where="time.sleep")
def test_a_sleeper_in_one_group_holds_up_another(world) -> None:
    """Rank 1 sleeps; rank 0 waits for it in a pair, and ranks 2 and 3 for rank 0 in the world."""
    pair = dist.new_group([0, 1])
    if world.rank == 1:
        time.sleep(FOREVER_S)
    if world.rank == 0:
        meet(pair)
    meet()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_destroys_the_groups_early(world) -> None:
    """Rank 2 destroys its process groups and returns, the others take one more step."""
    meet()
    if world.rank == 2:
        dist.destroy_process_group()
        return
    meet()


# Threads and tasks of one rank


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2])
def test_a_thread_barrier_with_too_many_parties(world) -> None:
    """Rank 1's threads wait at a barrier for one party more than there are."""
    if world.rank == 1:
        threading.Barrier(2).wait()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_a_future_whose_task_waits_for_an_event(world) -> None:
    """The primary waits for a future of a thread that waits for an event."""
    if world.is_primary:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(threading.Event().wait).result()
    meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_a_bounded_queue_that_nobody_empties(world) -> None:
    """Rank 2 puts into a full queue; its consumer has ended."""
    if world.rank == 2:
        full: queue.Queue[int] = queue.Queue(1)
        full.put(1)
        full.put(2)
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_a_queue_is_joined_without_task_done(world) -> None:
    """Rank 1 joins a queue whose worker never calls task_done."""
    if world.rank == 1:
        work: queue.Queue[int] = queue.Queue()
        threading.Thread(target=work.get, daemon=True).start()
        work.put(1)
        work.join()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_a_task_awaits_a_future_that_nobody_resolves(world) -> None:
    """The primary's coroutine awaits a bare future."""

    async def upload() -> None:
        await asyncio.get_running_loop().create_future()

    if world.is_primary:
        asyncio.run(upload())
    meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2])
def test_two_coroutines_lock_in_opposite_order(world) -> None:
    """Two tasks of rank 1 each hold the lock that the other one wants."""

    async def both() -> None:
        first, second = asyncio.Lock(), asyncio.Lock()

        async def take(one: asyncio.Lock, other: asyncio.Lock) -> None:
            async with one:
                await asyncio.sleep(0.01)
                async with other:
                    pass

        await asyncio.gather(take(first, second), take(second, first))

    if world.rank == 1:
        asyncio.run(both())
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_a_lock_is_held_by_a_thread_that_has_ended(world) -> None:
    """A thread of rank 1 took a lock and ended without giving it back."""
    if world.rank == 1:
        lock = threading.Lock()
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        lock.acquire()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_a_semaphore_of_a_pool_is_not_given_back(world) -> None:
    """The primary takes a connection more than its pool has."""
    if world.is_primary:
        places = threading.BoundedSemaphore(2)
        for _ in range(3):
            places.acquire()
    meet()


# Other processes and the kernel


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0], where="communicate")
def test_a_child_that_waits_for_more_input(world) -> None:
    """Rank 1 reads the output of a program that sleeps."""
    if world.rank == 1:
        with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE) as child:
            child.communicate()
    meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2])
def test_waits_for_any_child(world) -> None:
    """The primary reaps its children, one of which never ends."""
    if world.is_primary:
        child = subprocess.Popen(["sleep", "600"])
        os.waitpid(child.pid, 0)
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_joins_a_forked_process_that_sleeps(world) -> None:
    """The primary joins a worker that loads for ever."""
    if world.is_primary:
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_S,))
        worker.start()
        worker.join()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=("proof", "deadline"))
def test_a_process_pool_whose_task_sleeps(world) -> None:
    """Rank 1 tokenizes in a pool, whose only task never ends."""
    if world.rank == 1:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            pool.submit(time.sleep, FOREVER_S).result()
    meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_pauses_for_a_signal(world) -> None:
    """Rank 2 waits for a signal by which an operator lets it go on."""
    if world.rank == 2:
        signal.sigwait({signal.SIGUSR1})
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_selects_its_own_socket_pair(world) -> None:
    """Rank 1 waits until one end of its own pair can be read; it never writes into the other."""
    if world.rank == 1:
        mine, _other = socket.socketpair()
        select.select([mine], [], [])
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_an_event_descriptor_that_nobody_adds_to(world) -> None:
    """The primary reads its own eventfd."""
    if world.is_primary:
        os.eventfd_read(os.eventfd(0))
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_writes_into_its_own_full_pipe(world) -> None:
    """Rank 1 writes more into a pipe than it holds, and reads afterwards."""
    if world.rank == 1:
        _reading, writing = os.pipe()
        os.write(writing, bytes(1 << 20))
    meet()


@hang("died", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_EXIT)
def test_exits_hard_with_zero(world) -> None:
    """Rank 1 leaves by os._exit(0) between two steps."""
    meet()
    if world.rank == 1:
        os._exit(0)
    meet()


@hang("died", ranks=2, backend="gloo", culprits=[0], waiting=[1], by=BY_EXIT)
def test_reads_from_address_zero(world) -> None:
    """A native extension of the primary dereferences a null pointer."""
    meet()
    if world.is_primary:
        ctypes.string_at(0)
    meet()


@hang("died", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_EXIT)
def test_aborts(world) -> None:
    """Rank 2 aborts in a check of native code."""
    meet()
    if world.rank == 2:
        os.abort()
    meet()


@hang("died", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_EXIT)
def test_a_child_kills_its_parent(world) -> None:
    """A watchdog script that rank 1 has started kills it."""
    meet()
    if world.rank == 1:
        subprocess.run(["sh", "-c", f"kill -9 {os.getpid()}"], check=False)
        time.sleep(FOREVER_S)
    meet()


@hang("stopped", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=("stopped",))
def test_stopped_by_a_job_control_script(world) -> None:
    """A child stops the primary, as a batch system that suspends jobs does."""
    meet()
    if world.is_primary:
        subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}"])
        time.sleep(FOREVER_S)
    meet()


# Busy


@hang("livelock", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_DEADLINE)
def test_computes_for_ever_in_torch(world) -> None:
    """Rank 1 iterates until a value converges, which it never does."""
    while world.rank == 1:
        torch.linalg.inv(torch.eye(16))
    meet()


@hang("livelock", ranks=2, backend="gloo", culprits=[0], waiting=[1], by=BY_DEADLINE)
def test_retries_with_a_growing_pause(world) -> None:
    """The primary retries a connection, at most every half second, for ever."""
    pause_s = 0.01
    while world.is_primary:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 9), timeout=1):
            break
        time.sleep(pause_s)
        pause_s = min(0.5, pause_s * 2)
    meet()


@hang("livelock", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_DEADLINE)
def test_lists_a_folder_until_all_shards_are_there(world, shared_tmp_path) -> None:
    """Rank 2 lists a folder until it has one file more than ranks write."""
    (shared_tmp_path / f"shard-{world.rank}").touch()
    while world.rank == 2 and len(os.listdir(shared_tmp_path)) < 4:
        time.sleep(0.1)
    meet()


# The harness's own channel, and transports of one's own


@hang("finished", ranks=3, backend="none", culprits=[2], waiting=[0, 1])
def test_gathers_one_time_fewer(world) -> None:
    """Rank 2 gathers two times, the others three times."""
    for _ in range(3 - (world.rank == 2)):
        world.gather(world.rank)


@hang("straggler", ranks=3, backend="none", culprits=[1], waiting=[0, 2], where="time.sleep")
def test_broadcast_without_its_source(world) -> None:
    """The harness's broadcast waits for all ranks, and rank 1 sleeps."""
    if world.rank == 1:
        time.sleep(FOREVER_S)
    world.broadcast("config")


@hang("straggler", ranks=3, backend="none", culprits=[0], waiting=[1, 2], where="time.sleep")
def test_a_transport_of_ones_own_waits_for_the_primary(world) -> None:
    """Ranks 1 and 2 say by `operation` that they wait for the primary."""
    if world.is_primary:
        time.sleep(FOREVER_S)
    with pytest_multihost.operation("fetch_weights", peers=[0]):
        threading.Event().wait()


@hang("deadlock", ranks=4, backend="none")
def test_a_ring_of_ones_own_transport(world) -> None:
    """Each rank waits for its right neighbour in an operation of its own."""
    with pytest_multihost.operation("token", peers=[(world.rank + 1) % 4]):
        threading.Event().wait()


# Library habits


@lru_cache
def cached_mean(step: int) -> float:
    """Return the mean over all ranks; it is computed once per argument."""
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


@hang("finished", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2])
def test_a_collective_behind_a_cache(world) -> None:
    """Rank 1 asks for the same step twice, so its second call is answered by the cache."""
    cached_mean.cache_clear()
    for step in (0, 0) if world.rank == 1 else (0, 1):
        cached_mean(step)


@hang("finished", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2])
def test_saving_is_the_job_of_the_others(world) -> None:
    """A decorator returns None on the primary instead of running the collective function."""

    def not_on_primary(function):  # noqa: ANN202 - as in a library
        return (lambda: None) if world.is_primary else function

    not_on_primary(meet)()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0], where="time.sleep")
def test_a_slow_getitem(world) -> None:
    """The dataset of rank 1 reads a sample that never comes, in the main process."""

    class Slow(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if world.rank == 1 and index == 2:
                time.sleep(FOREVER_S)
            return index

    for _ in DataLoader(Slow(), batch_size=1):
        meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], where="time.sleep")
def test_a_backward_hook_sleeps(world) -> None:
    """A gradient hook of rank 2 writes to a log that does not answer."""
    weight = torch.ones(2, requires_grad=True)
    if world.rank == 2:
        weight.register_hook(lambda grad: time.sleep(FOREVER_S))
    weight.sum().backward()
    meet()


@hang("finished", ranks=4, backend="gloo", culprits=[1, 3], waiting=[0, 2])
def test_only_even_ranks_validate(world) -> None:
    """Half of the ranks believe that validation is theirs, and meet in the world's group."""
    steps(2)
    if world.rank % 2 == 0:
        meet()


@hang("straggler", ranks=4, backend="gloo", culprits=[1, 2], waiting=[0, 3], where="time.sleep")
def test_two_ranks_sleep(world) -> None:
    """Two of four ranks wait for their disks."""
    if world.rank in (1, 2):
        time.sleep(FOREVER_S)
    meet()
