"""Hangs of torch whose first sign points elsewhere: errors, wrappers, limits and generated code.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S

BY_RAISE = ("raise", "proof")
BY_MISMATCH = ("mismatch", "proof")


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


# Errors beside hangs


@hang(
    "raised",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=BY_RAISE,
    also=[{"kind": "transport", "culprits": [1]}],
    why="it raises, and what it raises is a failed connection of the runtime",
)
def test_a_store_of_one_rank_is_not_to_be_reached(world) -> None:
    """Rank 1 connects to a store of its own, whose server was never started."""
    meet()
    if world.rank == 1:
        dist.TCPStore("127.0.0.1", 9, is_master=False, timeout=timedelta(seconds=1))
    meet()


@pytest.fixture
def left_together() -> Iterator[None]:
    """Meet at a barrier when the test is over."""
    yield
    dist.barrier()


@hang(
    "raised",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=BY_RAISE,
    outcome=("failed", "error"),
    also=[{"kind": "mismatch", "culprits": [1]}],
    why="it has raised, and its finalizer is in another collective than the others",
)
def test_a_finalizer_meets_at_a_barrier_after_an_error(world, left_together) -> None:
    """Rank 1 fails, and goes on to the barrier of its finalizer; the others reduce."""
    meet()
    if world.rank == 1:
        raise ValueError("bad shard")
    meet()


@hang("deadlock", ranks=4, backend="gloo", outcome=("failed", "hung"), by=BY_RAISE)
def test_an_error_for_which_nobody_waits_beside_a_deadlock(world) -> None:
    """Rank 1 fails after a second; ranks 2 and 3 receive from each other all the time."""
    if world.rank == 1:
        time.sleep(1)
        raise ValueError("bad shard")
    if world.rank >= 2:
        dist.recv(torch.zeros(4), src=5 - world.rank)


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1, 3],
    by=("raise", "proof", "mismatch"),
)
def test_a_limit_of_a_monitored_barrier_strikes(world) -> None:
    """Rank 2 is in another collective than the others, which give up after two seconds."""
    meet()
    if world.rank == 2:
        dist.all_reduce(torch.ones(4))
        return
    dist.monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks=True)


# Wrappers and other ways to call


def checked_group() -> object:
    """Return a group of all ranks whose operations torch compares before it begins them."""
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    dist.set_debug_level(level)
    return group


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], where="time.sleep")
def test_a_sleeper_of_a_group_that_torch_checks(world) -> None:
    """The others wait in the comparison before the all_reduce."""
    group = checked_group()
    meet(group)
    if world.rank == 1:
        time.sleep(FOREVER_S)
    meet(group)


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_a_step_less_in_a_group_that_torch_checks(world) -> None:
    """Rank 2 leaves, and the others compare their operations once more."""
    group = checked_group()
    for _ in range(2 if world.rank == 2 else 3):
        meet(group)


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=BY_MISMATCH,
    where="barrier()",
)
def test_a_process_group_is_used_without_torchs_functions(world) -> None:
    """Methods of the group itself are called, as libraries do; rank 1 calls another one."""
    group = dist.group.WORLD
    if world.rank == 1:
        group.barrier().wait()
    group.allreduce([torch.ones(4)]).wait()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_an_operator_of_the_compiler_is_called(world) -> None:
    """Compiled code calls operators of torch; rank 2 has one step less."""
    name = dist.group.WORLD.group_name
    for _ in range(1 if world.rank == 2 else 2):
        total = torch.ops._c10d_functional.all_reduce(torch.ones(4), "sum", name)
        torch.ops._c10d_functional.wait_tensor(total)


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], where="exec(")
def test_generated_code_sleeps(world) -> None:
    """Rank 1 runs a step that was generated, and has no file."""
    if world.rank == 1:
        exec(f"import time\ntime.sleep({FOREVER_S})")  # noqa: S102 - as generators of code do
    meet()


@hang("deadlock", ranks=3, backend="gloo")
def test_three_groups_in_three_orders(world) -> None:
    """Each rank begins with another one of three groups of all ranks."""
    groups = [dist.new_group() for _ in range(3)]
    for number in range(3):
        meet(groups[(number + world.rank) % 3])


@hang("straggler", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], where="time.sleep")
def test_a_sleeper_after_a_timeout_that_was_handled(world) -> None:
    """A limit has struck in an earlier group, and all have gone on with another one."""
    first = dist.new_group(timeout=timedelta(seconds=1))
    if world.rank != 0:
        with pytest.raises(RuntimeError):
            meet(first)
    second = dist.new_group()
    if world.rank == 0:
        time.sleep(FOREVER_S)
    meet(second)
