"""The harness's own barrier and gather, fixtures, and several hangs in one run."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from expectation import hang


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang("straggler", ranks=4, backend="none", culprits=[3], waiting=[0, 1, 2])
def test_world_barrier_without_a_sleeper(world) -> None:
    """Three ranks are in the world's barrier, the fourth sleeps.

    Source: field report class: a test's own barrier, reached by all but one
    """
    if world.rank == 3:
        time.sleep(600)
    world.barrier()


@hang("finished", ranks=4, backend="none", culprits=[3], waiting=[0, 1, 2], by=("raise", "proof"))
def test_world_barrier_on_three_of_four(world) -> None:
    """Three ranks are in the world's barrier, the fourth has left: the harness releases them.

    Source: https://github.com/pytorch/pytorch/issues/138322
    """
    if world.rank == 3:
        time.sleep(0.5)
        return
    world.barrier()


@hang(
    "mismatch",
    ranks=3,
    backend="none",
    culprits=[0],
    waiting=None,
    by=("mismatch", "raise", "proof"),
    also=[{"kind": "deadlock", "culprits": []}],
    why="the world's operations are numbered by name: same sequence or not depends on that",
)
def test_gather_meets_barrier(world) -> None:
    """The primary gathers results, the others are in a barrier.

    Source: https://github.com/onera/pytest_parallel (gather of reports against a barrier)
    """
    if world.is_primary:
        world.gather(1)
    world.barrier()


@hang(
    "mismatch",
    ranks=2,
    backend="none",
    by=("mismatch", "raise", "proof"),
    also=[{"kind": "deadlock", "culprits": []}],
    why="the world's operations are numbered by name: same sequence or not depends on that",
)
def test_barriers_of_other_names(world) -> None:
    """Two ranks wait in barriers of different names.

    Source: https://github.com/marin-community/marin/pull/8538 (names that differ per rank)
    """
    world.barrier(f"step {world.rank}")


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1, 3],
    sides={(2,): "world.barrier()", (0, 1, 3): "all_reduce"},
)
def test_world_barrier_meets_reduce(world) -> None:
    """One rank is in the world's barrier, the others in an all_reduce.

    Source: https://github.com/firedrakeproject/mpi-pytest/issues/12 (barrier after each test)
    """
    meet()
    if world.rank == 2:
        world.barrier()
    meet()
    world.barrier()


@pytest.fixture
def prepared(world) -> None:
    """Prepare data; one rank never gets it."""
    if world.rank == 1:
        threading.Event().wait()
    world.barrier("prepared")


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2])
def test_fixture_hangs_in_setup(world, prepared) -> None:
    """A fixture waits for ever on one rank, the others are in its barrier.

    Source: field report class: data prepared per rank in a fixture
    """


@pytest.fixture
def destroyed(world) -> object:
    """Leave the process group afterwards; one rank never gets so far."""
    yield
    if world.rank == 0:
        time.sleep(600)
    dist.barrier()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_finalizer_hangs(world, destroyed) -> None:
    """A finalizer sleeps on the primary, the other rank is in its barrier.

    Source: https://github.com/NVIDIA/Megatron-LM/issues/4139
    """
    meet()


@hang(
    "straggler",
    ranks=4,
    backend="gloo",
    culprits=[1],
    waiting=[0],
)
def test_two_hangs_at_once(world) -> None:
    """Of two pairs each has one rank that sleeps; the earlier is the diagnosis, the other a note.

    Source: https://github.com/NVIDIA/nvidia-resiliency-ext (with two faulty ranks one is found)
    """
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if world.rank >= 2:
        time.sleep(0.7)
    if world.rank in (1, 3):
        time.sleep(600)
    meet(groups[world.rank // 2])


@pytest.mark.parametrize("nth", [1, 2])
@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_two_hangs_in_one_run(world, nth) -> None:
    """The same hang twice in a row: the second world starts afresh.

    Source: https://github.com/microsoft/DeepSpeed/issues/2808 (a hung test ends the session)
    """
    meet()
    if world.rank == 2:
        time.sleep(600)
    meet()
