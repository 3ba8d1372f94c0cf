"""Native code that holds the interpreter's lock."""

from __future__ import annotations

import ctypes
import os
import re

import torch
import torch.distributed as dist
from expectation import hang


def meet() -> None:
    """Let all ranks meet."""
    dist.all_reduce(torch.ones(4))


def libc() -> ctypes.PyDLL:
    """Return the C library, called without releasing the GIL."""
    return ctypes.PyDLL(None)


@hang("gil_held", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3])
def test_native_sleep_holds_the_gil(world) -> None:
    """An extension waits inside a call that has not released the GIL.

    Source: https://github.com/hw-native-sys/simpler/issues/721
    """
    meet()
    if world.rank == 1:
        libc().sleep(600)
    meet()


@hang("gil_held", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_native_mutex_taken_twice(world) -> None:
    """Native code deadlocks on its own mutex with the GIL in its hand.

    Source: https://github.com/pytorch/xla/pull/4504
    """
    if world.is_primary:
        mutex = ctypes.create_string_buffer(64)
        libc().pthread_mutex_lock(mutex)
        libc().pthread_mutex_lock(mutex)
    meet()


@hang("gil_held", ranks=2, backend="none", culprits=[1], waiting=[0])
def test_native_read_holds_the_gil(world) -> None:
    """A driver reads from a device that never answers, with the GIL held.

    Source: https://github.com/epics-base/p4p/pull/189
    """
    if world.rank == 1:
        reading, _writing = os.pipe()
        libc().read(reading, ctypes.create_string_buffer(1), 1)
    world.barrier()


@hang(
    "gil_held",
    ranks=2,
    backend="gloo",
    culprits=[1],
    waiting=[0],
    by=("deadline",),
    also=[{"kind": "livelock", "culprits": [1]}],
    why="the regular expression engine computes and holds the GIL at once",
)
def test_catastrophic_regular_expression(world) -> None:
    """A regular expression backtracks for ever, which also keeps all other threads waiting.

    Source: https://github.com/NVIDIA/nvidia-resiliency-ext (inject_fault: LOCK_GIL)
    """
    if world.rank == 1:
        re.match(r"(a|a)*$", "a" * 64 + "b")
    meet()


@hang("gil_held", ranks=2, backend="none", culprits=[0], waiting=[1], by=("deadline",))
def test_native_computation_holds_the_gil(world) -> None:
    """Native code computes for hours and never comes back to Python, not even for a signal.

    Source: field report class: an extension that does not release the GIL
    """
    if world.is_primary:
        sum(range(10**14))
    world.barrier()
