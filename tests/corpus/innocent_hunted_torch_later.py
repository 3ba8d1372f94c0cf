"""Idle threads, futures, hooks and handlers beside torch that look guilty and are fine.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from expectation import innocent
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

SLOW_S = 4.0


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@innocent(ranks=3, backend="gloo")
def test_idle_listeners_in_a_circle(world) -> None:
    """Each rank has a thread that listens to the next one; nobody has anything to say."""
    control = dist.new_group()
    ahead = (world.rank + 1) % 3
    listen = functools.partial(dist.recv, torch.zeros(4), ahead, group=control)
    threading.Thread(target=listen, daemon=True).start()
    if world.is_primary:
        time.sleep(SLOW_S)
    meet()


@innocent(ranks=3, backend="gloo")
def test_listeners_are_stopped_late(world) -> None:
    """Two ranks wait for their listeners, which the primary ends after some seconds."""
    control = dist.new_group()
    if world.is_primary:
        time.sleep(SLOW_S)
        for rank in (1, 2):
            dist.send(torch.ones(1), rank, group=control)
        return
    listener = threading.Thread(
        target=functools.partial(dist.recv, torch.zeros(1), 0, group=control)
    )
    listener.start()
    listener.join()


@innocent(ranks=3, backend="gloo")
def test_one_rank_gathers_its_parameters_early(world) -> None:
    """Rank 1 begins the gather of its forward pass long before it needs it."""
    model = fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (3,)))
    if world.rank == 1:
        model.unshard(async_op=True)
        time.sleep(SLOW_S)
    model(torch.ones(2, 8)).sum().backward()


class FullDisk(FileSystemWriter):
    """A storage on which one rank cannot write."""

    def write_data(self, plan, planner) -> object:
        """Fail on rank 1, late."""
        if dist.get_rank() == 1:
            time.sleep(1)
            raise OSError(28, "No space left on device")
        return super().write_data(plan, planner)


@innocent(ranks=3, backend="gloo", status="failed")
def test_all_ranks_are_told_that_a_save_has_failed(world, shared_tmp_path) -> None:
    """The exception of rank 1 goes round in the collectives of dcp.save, and all raise."""
    writer = FullDisk(shared_tmp_path / "step-1")
    dcp.save({"weight": torch.ones(8)}, storage_writer=writer)


@innocent(ranks=2, backend="gloo")
def test_a_limit_of_asyncio_strikes_before_the_step_ends(world) -> None:
    """The primary goes on after a second; its thread is joined when the other has come."""

    async def step() -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(loop.run_in_executor(None, meet), 1)
        except TimeoutError:
            print("slow")

    if world.rank == 1:
        time.sleep(SLOW_S)
        meet()
        return
    asyncio.run(step())


@innocent(ranks=3, backend="gloo")
def test_handlers_of_all_ranks_meet(world) -> None:
    """All are told to save, one of them some seconds later, in the middle of something else."""
    signal.signal(signal.SIGUSR1, lambda *_: dist.barrier())
    if world.rank == 1:
        threading.Timer(SLOW_S, signal.pthread_kill, (threading.main_thread().ident, 10)).start()
        time.sleep(SLOW_S + 1)
    else:
        signal.raise_signal(signal.SIGUSR1)
    meet()


@innocent(ranks=2, backend="gloo")
def test_a_hook_of_ddp_completes_its_future_late(world) -> None:
    """A timer of rank 1 completes the future that its backward pass waits for."""

    def reduced(_, bucket):  # noqa: ANN202 - torch reads annotations, and takes no strings
        dist.all_reduce(bucket.buffer())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        after_s = SLOW_S if world.rank == 1 else 0
        threading.Timer(after_s, future.set_result, (bucket.buffer(),)).start()
        return future

    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model.register_comm_hook(None, reduced)
    model(torch.ones(2, 4)).sum().backward()
    dist.barrier()


@innocent(ranks=2, backend="gloo")
def test_activations_are_computed_again_slowly(world) -> None:
    """The backward pass has the collective of the forward pass once more, one rank late."""

    def block(inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_S / 2 * world.rank)
        meet()
        return inputs.sin()

    checkpoint(block, torch.ones(4, requires_grad=True), use_reentrant=False).sum().backward()
    dist.barrier()


@innocent(ranks=3, backend="gloo")
def test_messages_of_anybody_of_whom_one_has_left(world) -> None:
    """The primary takes two messages from whoever sends them; the second sender is late."""
    if world.is_primary:
        senders = {dist.recv(torch.zeros(4)) for _ in range(2)}
        assert senders == {1, 2}
        return
    if world.rank == 2:
        time.sleep(SLOW_S)
    dist.send(torch.ones(4), 0)


@innocent(ranks=2, backend="gloo")
def test_a_metrics_thread_fails_and_nobody_needs_it(world) -> None:
    """A thread of rank 1 raises while its main thread computes for some seconds."""

    def publish() -> None:
        raise OSError("no route to host")

    if world.rank == 1:
        threading.Thread(target=publish).start()
        time.sleep(SLOW_S)
    meet()
