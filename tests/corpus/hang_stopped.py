"""A rank is stopped by somebody else, and nobody continues it."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import signalled_by_a_child

BY_STOP = ("stopped",)


def meet() -> None:
    """Let all ranks meet."""
    dist.all_reduce(torch.ones(4))


@hang("stopped", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], by=BY_STOP)
def test_stopped_by_a_child(world) -> None:
    """A child process stops its rank before a collective.

    Source: field report class: SIGSTOP by a job suspender; peers.md shows torch's own tests hang
    """
    meet()
    if world.rank == 1:
        signalled_by_a_child("STOP").wait()
    meet()


@hang("stopped", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_STOP)
def test_stopped_inside_a_collective(world) -> None:
    """A rank is stopped after it has entered the collective, before the last one enters it.

    Source: https://github.com/jax-ml/jax/issues/38503 (alive, its connections open, and stuck)
    """
    meet()
    if world.rank == 1:
        signalled_by_a_child("STOP", after_s=0.5)
    if world.rank == 2:
        time.sleep(1.5)
    meet()


@hang("stopped", ranks=2, backend="none", culprits=[0], waiting=[1], by=BY_STOP)
def test_stops_itself_as_under_a_debugger(world) -> None:
    """The primary stops itself to let a debugger attach, which never comes.

    Source: field report class: a stop for a debugger is left in the code
    """
    if world.is_primary:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


@hang("stopped", ranks=8, backend="gloo", culprits=[7], waiting=[0, 1, 2, 3, 4, 5, 6], by=BY_STOP)
def test_one_of_eight_is_suspended(world) -> None:
    """The scheduler suspends the last of eight ranks.

    Source: field report class: suspended by a scheduler (SIGTSTP)
    """
    meet()
    if world.rank == 7:
        signalled_by_a_child("STOP", after_s=0.2).wait()
    dist.barrier()
