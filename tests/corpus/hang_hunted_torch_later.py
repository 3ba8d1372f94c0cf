"""Hangs of torch beside idle threads, futures, hooks and handlers that look guilty themselves.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

BY_RAISE = ("raise", "proof")
BY_MISMATCH = ("mismatch", "proof")


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


# Messages


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0], where="time.sleep")
def test_a_message_of_anybody_whose_last_sender_sleeps(world) -> None:
    """The primary takes a message from whoever sends one; rank 1 has none and has left."""
    if world.is_primary:
        dist.recv(torch.zeros(4))
    if world.rank == 2:
        time.sleep(FOREVER_S)


@hang("deadlock", ranks=3, backend="gloo")
def test_a_message_of_anybody_while_all_others_are_at_a_barrier(world) -> None:
    """Both workers wait for the primary, which waits for the first of them."""
    if world.is_primary:
        dist.recv(torch.zeros(4))
    dist.barrier()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_a_receive_is_open_that_is_not_waited_for(world) -> None:
    """The primary has two receives open, and waits for that of the rank that has left."""
    if world.is_primary:
        receives = [dist.irecv(torch.zeros(4), src=1), dist.irecv(torch.zeros(4), src=2)]
        receives[1].wait()
    if world.rank == 1:
        dist.recv(torch.zeros(4), src=0)


@hang("straggler", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], where="time.sleep")
def test_a_chain_of_a_reduce_a_key_and_a_thread(world) -> None:
    """Rank 1 waits for a key of rank 2, whose thread receives from rank 3."""
    store = _get_default_store()
    if world.rank == 3:
        time.sleep(FOREVER_S)
    if world.rank == 2:
        thread = threading.Thread(target=dist.recv, args=(torch.zeros(4), 3))
        thread.start()
        thread.join()
        store.set("received", "yes")
    if world.rank == 1:
        store.wait(["received"])
    meet()


# Threads that are idle, and operations that nobody waits for


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], where="time.sleep")
def test_a_sleeper_beside_a_circle_of_idle_listeners(world) -> None:
    """Each rank has a thread that listens to the next one, which is no deadlock."""
    control = dist.new_group()
    ahead = (world.rank + 1) % 3
    listen = functools.partial(dist.recv, torch.zeros(4), ahead, group=control)
    threading.Thread(target=listen, daemon=True).start()
    meet()
    if world.rank == 2:
        time.sleep(FOREVER_S)
    meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], where="time.sleep")
def test_a_sleeper_has_an_operation_of_another_group_open(world) -> None:
    """Rank 2 has begun an all_reduce that the others come to later, and sleeps."""
    side = dist.new_group()
    if world.rank == 2:
        work = dist.all_reduce(torch.ones(4), group=side, async_op=True)
        time.sleep(FOREVER_S)
        work.wait()
    meet()
    meet(side)


@hang("deadlock", ranks=4, backend="gloo", by=("deadline",))
def test_a_pair_waits_for_each_other_while_others_go_on(world) -> None:
    """Ranks 0 and 1 take steps until rank 2 sets a key, which it never does."""
    store = _get_default_store()
    pair = dist.new_group([0, 1])
    if world.rank >= 2:
        dist.recv(torch.zeros(4), src=5 - world.rank)
        store.set("stop", "yes")
        return
    is_over = torch.zeros(1)
    while not is_over:
        is_over += float(world.is_primary and store.check(["stop"]))
        dist.all_reduce(is_over, group=pair)
        time.sleep(0.05)


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0], where="time.sleep")
def test_a_limit_of_asyncio_strikes_and_its_thread_stays(world) -> None:
    """The primary gives its step two seconds; asyncio.run then waits for the thread."""

    async def step() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.run_in_executor(None, meet), 2)

    if world.rank == 1:
        time.sleep(FOREVER_S)
    asyncio.run(step())


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    also=[{"kind": "deadlock", "culprits": []}],
    why="two groups have the same members: a rank alone in one of them is a minority as well",
)
def test_an_error_is_held_up_by_a_pool_whose_task_meets_nobody(world) -> None:
    """Rank 1 fails beside a task in a second group, and the pool waits for that task."""
    side = dist.new_group()
    if world.rank == 1:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(meet, side)
            raise ValueError("bad shard")
    meet()
    meet(side)


# Hooks, futures and handlers


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2])
def test_a_callback_of_a_future_sleeps(world) -> None:
    """Rank 1 writes its metrics in a callback, to a server that does not answer."""
    work = dist.all_reduce(torch.ones(4), async_op=True)
    future = work.get_future()
    if world.rank == 1:
        future = future.then(lambda _: time.sleep(FOREVER_S))
    future.wait()
    dist.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], where="backward()")
def test_a_hook_of_ddp_never_completes_its_future(world) -> None:
    """Rank 1 has reduced its gradients, and its backward pass waits for them for ever."""

    def reduced(_, bucket):  # noqa: ANN202 - torch reads annotations, and takes no strings
        dist.all_reduce(bucket.buffer())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if world.rank != 1:
            future.set_result(bucket.buffer())
        return future

    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model.register_comm_hook(None, reduced)
    model(torch.ones(2, 4)).sum().backward()
    dist.barrier()


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=BY_MISMATCH,
    where="dist.barrier()",
)
def test_a_handler_of_one_rank_meets_the_others_at_a_barrier(world) -> None:
    """Only rank 1 is told to save before it is preempted."""
    signal.signal(signal.SIGUSR1, lambda *_: dist.barrier())
    meet()
    if world.rank == 1:
        signal.raise_signal(signal.SIGUSR1)
    meet()


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=BY_MISMATCH,
    where="dist.barrier()",
)
def test_a_loss_without_a_gradient_reduces_nothing_backwards(world) -> None:
    """Each reduction is one of the backward pass, too; rank 1 has frozen all its inputs."""
    inputs = torch.ones(4, requires_grad=world.rank != 1)
    loss = differentiable.all_reduce(inputs).sum()
    if loss.requires_grad:
        loss.backward()
    dist.barrier()


@hang(
    "mismatch",
    ranks=3,
    backend="simulated",
    culprits=[2],
    waiting=[0, 1],
    by=BY_MISMATCH,
    where="dist.barrier()",
)
def test_one_rank_computes_no_activations_again(world) -> None:
    """What is computed again in the backward pass has a collective; rank 2 only evaluates."""

    def block(inputs: torch.Tensor) -> torch.Tensor:
        meet()
        return inputs.sin()

    with torch.set_grad_enabled(world.rank != 2):
        loss = checkpoint(block, torch.ones(4, requires_grad=True), use_reentrant=False).sum()
        if loss.requires_grad:
            loss.backward()
    dist.barrier()


# Ranks that leave


@hang(
    "finished",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=("exit", "raise", "proof"),
    outcome=("hung", "failed"),
    also=[{"kind": "raised", "culprits": [1]}],
    why="a skip is an exception of pytest by which a rank leaves the test",
)
def test_one_rank_skips_the_test(world) -> None:
    """Rank 1 finds no data on its host and skips."""
    meet()
    if world.rank == 1:
        pytest.skip("no data here")
    meet()


@hang("raised", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_RAISE, where="raise")
def test_one_rank_is_interrupted(world) -> None:
    """A library of rank 1 has caught an interrupt and raises it again."""
    meet()
    if world.rank == 1:
        raise KeyboardInterrupt
    meet()


# Libraries


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1],
    by=BY_MISMATCH,
    where="dist.barrier()",
)
def test_one_rank_has_nothing_to_train(world) -> None:
    """DDP compares the parameters of all ranks when it is made, in C++; rank 2 makes none."""
    if world.rank != 2:
        DistributedDataParallel(torch.nn.Linear(4, 4))
    dist.barrier()


@hang("finished", ranks=2, backend="simulated", culprits=[1], waiting=[0])
def test_only_the_primary_consolidates_its_optimizer(world) -> None:
    """The state of a sharded optimizer is sent by all ranks, and one of them does not."""
    model = torch.nn.Linear(4, 4)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if world.is_primary:
        optimizer.consolidate_state_dict(to=0)


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2],
    by=BY_MISMATCH,
    where="get_model_state_dict",
)
def test_the_primary_gathers_the_state_of_a_sharded_model(world) -> None:
    """A full state takes all ranks, and two of them are at the barrier behind it."""
    model = fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (3,)))
    if world.is_primary:
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    dist.barrier()


def retried(step: Callable[[int], None]) -> Callable[[int], None]:
    """Let a step that fails be taken once more."""

    @functools.wraps(step)
    def wrapper(number: int) -> None:
        try:
            step(number)
        except OSError:
            step(number)

    return wrapper


@hang(
    "mismatch",
    ranks=3,
    backend="simulated",
    culprits=[1],
    waiting=[0, 2],
    by=BY_MISMATCH,
    where="dist.all_reduce",
)
def test_a_step_that_has_met_all_is_taken_again(world) -> None:
    """Rank 1 cannot write its log after its step, and a decorator repeats the step."""
    failed: list[int] = []

    @retried
    def step(number: int) -> None:
        dist.all_reduce(torch.ones(4))
        if world.rank == 1 and number == 1 and not failed:
            failed.append(number)
            raise OSError("no space left on device")

    for number in range(2):
        step(number)
    dist.barrier()
