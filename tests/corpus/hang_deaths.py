"""The process of a rank ends while others wait for it, or while nobody does."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from expectation import hang
from mishaps import signalled_by_a_child

MEMORY = Path("/sys/fs/cgroup/memory")
BY_EXIT = ("exit",)


def meet() -> None:
    """Let all ranks meet."""
    dist.all_reduce(torch.ones(4))


@hang("died", ranks=4, backend="gloo", culprits=[2], waiting=[0, 1, 3], by=BY_EXIT)
def test_killed_before_a_collective(world) -> None:
    """One rank is killed, the others are in an all_reduce.

    Source: field report class: preempted or killed by the scheduler
    """
    meet()
    if world.rank == 2:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    meet()


@hang("died", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_EXIT)
def test_exits_with_zero(world) -> None:
    """A rank ends itself with exit code 0: no failure to any launcher.

    Source: field report class: os._exit(0) in a worker's own shutdown path
    """
    meet()
    if world.rank == 1:
        time.sleep(0.5)
        os._exit(0)
    meet()


@hang("died", ranks=8, backend="gloo", culprits=[0], waiting=[1, 2, 3, 4, 5, 6, 7], by=BY_EXIT)
def test_primary_of_eight_exits(world) -> None:
    """The primary exits with a code, seven ranks are in a barrier.

    Source: https://github.com/pytorch/pytorch/issues/28257
    """
    meet()
    if world.is_primary:
        time.sleep(2)  # all seven are there, on a busy machine too
        os._exit(3)
    dist.barrier()


@hang("died", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_EXIT)
def test_segmentation_fault(world) -> None:
    """A rank dies in native code.

    Source: field report class: an extension crashes on one rank's data
    """
    meet()
    if world.rank == 1:
        time.sleep(0.5)
        ctypes.string_at(0)
    meet()


@hang("died", ranks=2, backend="none", culprits=[1], waiting=[], by=BY_EXIT)
def test_dies_while_nobody_waits(world) -> None:
    """A rank exits after all common work is done; the other writes its own log for a while.

    Source: https://github.com/pytorch/pytorch/issues/28257
    """
    world.barrier()
    if world.rank == 1:
        os._exit(7)
    time.sleep(2)


@hang("died", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], by=BY_EXIT)
def test_killed_by_its_own_child(world) -> None:
    """A watchdog process kills the rank that started it, in the middle of a collective.

    Source: https://github.com/jax-ml/jax/issues/38503 (what external watchdogs are left to do)
    """
    meet()
    if world.rank == 3:
        signalled_by_a_child("KILL", after_s=0.3).wait()
    meet()


@pytest.mark.skipif(
    not os.access(MEMORY / "cgroup.procs", os.W_OK), reason="no memory cgroup that we may write"
)
@hang("died", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_EXIT)
def test_killed_for_memory(world) -> None:
    """The kernel kills a rank that grows beyond the limit of its container.

    Source: https://github.com/ai2cm/ace/pull/1067
    """
    meet()
    if world.rank == 1:
        group = MEMORY / f"multihost-corpus-{os.getppid()}-{os.getpid()}"
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        bytearray(os.urandom(1)) * (512 << 20)
    meet()
