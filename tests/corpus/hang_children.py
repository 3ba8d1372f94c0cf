"""Child processes, and pipes that nobody writes to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist
from expectation import hang
from torch.utils.data import DataLoader, Dataset


def meet() -> None:
    """Let all ranks meet."""
    dist.all_reduce(torch.ones(4))


class Samples(Dataset[torch.Tensor]):
    """Samples of which the third never arrives."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 3:
            time.sleep(600)
        return torch.ones(1)


@hang(
    "straggler",
    ranks=2,
    backend="gloo",
    culprits=[1],
    waiting=[0],
    by=("deadline", "proof"),
    also=[{"kind": "livelock", "culprits": [1]}],
    why="the loader waits for its worker in slices of 5 s: one long wait, or short ones re-armed",
)
def test_data_loader_worker_hangs(world) -> None:
    """A forked worker of the data loader never comes back from a read.

    Source: https://github.com/pytorch/pytorch/issues/1355
    """
    if world.rank == 1:
        for _ in DataLoader(Samples(), num_workers=1):
            pass
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1], by=("proof", "deadline"))
def test_worker_of_a_pool_was_killed(world) -> None:
    """A worker of a multiprocessing pool is killed, its result never comes.

    Source: https://github.com/python/cpython/pull/10441
    """
    if world.is_primary:
        pool = multiprocessing.get_context("fork").Pool(1)
        pool.apply(kill_myself)
    meet()


def kill_myself() -> None:
    """End as the kernel's memory killer would end it."""
    os.kill(os.getpid(), signal.SIGKILL)


@hang("straggler", ranks=4, backend="gloo", culprits=[2], waiting=[0, 1, 3], where="subprocess.run")
def test_subprocess_never_ends(world) -> None:
    """A rank waits for a tool that never ends.

    Source: https://github.com/huggingface/accelerate (test_utils: unbounded wait for a process)
    """
    if world.rank == 2:
        subprocess.run(["sleep", "600"], check=True)
    meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=("deadline",))
def test_pipe_that_nobody_writes(world, tmp_path) -> None:
    """The primary opens a named pipe whose writer was never started; anybody still may.

    Source: field report class: waiting for a side-car process that is not there
    """
    if world.is_primary:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "pipe").read_bytes()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_pipe_whose_writing_end_is_its_own(world) -> None:
    """A rank reads a pipe to the end and holds the writing end itself.

    Source: field report class: an inherited descriptor keeps a pipe open
    """
    if world.rank == 1:
        reading, _writing = os.pipe()
        os.read(reading, 1)
    meet()


@hang("straggler", ranks=2, backend="none", culprits=[1], waiting=[0])
def test_child_waits_for_its_parent(world) -> None:
    """A rank waits for a child that reads from a pipe the rank would have to close.

    Source: https://docs.python.org/3/library/subprocess.html (wait with pipes may deadlock)
    """
    if world.rank == 1:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        child.wait()
    world.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], where="recv")
def test_pipe_of_a_child_that_has_ended(world) -> None:
    """A rank waits for what a child sends; it has ended, and its end is open in the rank as well.

    Source: https://docs.python.org/3/library/multiprocessing.html#pipes-and-queues (EOFError only
    once the other end is closed)
    """
    if world.rank == 2:
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        context.Process(target=os._exit, args=(0,)).start()
        mine.recv()
        theirs.close()
    meet()
