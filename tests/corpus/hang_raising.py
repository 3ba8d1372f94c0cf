"""A rank raises while others wait for it."""

from __future__ import annotations

import resource
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from expectation import hang
from torch.distributed.distributed_c10d import _get_default_store

BY_RAISE = ("raise",)


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang(
    "raised", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], by=BY_RAISE, where="raise"
)
def test_raises_before_the_first_collective(world) -> None:
    """One rank finds a bad shard, the others are in the all_reduce for ever.

    Source: https://github.com/firedrakeproject/mpi-pytest/issues/12
    """
    if world.rank == 1:
        raise ValueError("bad shard")
    meet()


@hang("raised", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], by=BY_RAISE)
def test_raises_while_others_are_in_different_collectives(world) -> None:
    """The one that raises is named, although two others can never match either.

    Source: field report class: an error on one rank sends another one down another branch
    """
    if world.rank == 1:
        raise ValueError("bad shard")
    if world.rank == 2:
        dist.barrier()
    meet()


@hang("raised", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_RAISE)
def test_raises_inside_a_collective(world) -> None:
    """One rank passes a list of the wrong length and gets the error alone.

    Source: https://github.com/NVIDIA/Fuser/issues/3092
    """
    found = [torch.ones(4) for _ in range(2 if world.rank == 2 else 3)]
    dist.all_gather(found, torch.ones(4))


@hang("raised", ranks=4, backend="gloo", culprits=[0], waiting=[1, 2, 3], by=BY_RAISE)
def test_primary_asserts_after_a_collective(world) -> None:
    """The primary checks the sum and fails, the others are at the next collective.

    Source: rocm-systems#10862 (a fatal assertion on one rank deadlocks the other)
    """
    total = torch.ones(4)
    dist.all_reduce(total)
    if world.is_primary:
        assert total[0] == 5
    meet()


@hang("raised", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_RAISE)
def test_end_of_a_chain_raises(world) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which has raised.

    Source: https://github.com/HDFGroup/hdf5/pull/1183 (failure skips past collectives)
    """
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    if world.rank == 2:
        raise OSError("no space left on the shard's device")
    if world.rank == 1:
        meet(second)
    meet(first)


@hang("raised", ranks=3, backend="none", culprits=[0], waiting=[1, 2], by=BY_RAISE, where="raise")
def test_raises_before_the_file_that_others_poll_for(world, shared_tmp_path) -> None:
    """The primary cannot prepare the data; the others look for them again and again.

    Source: https://github.com/mosaicml/llm-foundry/pull/716 (ranks poll for a file of rank 0)
    """
    if world.is_primary:
        raise OSError("no space left on device")
    while not (shared_tmp_path / "prepared").exists():
        time.sleep(0.05)


@hang("raised", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_RAISE)
def test_exits_the_interpreter(world) -> None:
    """A rank calls sys.exit in the middle of a step.

    Source: field report class: a fatal configuration error ends one rank with sys.exit
    """
    meet()
    if world.rank == 1:
        sys.exit(3)
    meet()


@hang("raised", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_RAISE)
def test_out_of_address_space(world) -> None:
    """One rank cannot allocate its buffer, the other waits in the collective that follows.

    Source: https://github.com/bigscience-workshop/Megatron-DeepSpeed/pull/48
    """
    meet()
    if world.rank == 1:
        soft = 4 << 30
        resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
        bytearray(soft)
    meet()


@hang("raised", ranks=2, backend="gloo", culprits=[0], waiting=[1], by=BY_RAISE)
def test_raises_while_it_handles_an_expected_timeout(world) -> None:
    """All try a key that may be missing; the primary cannot do without it and raises.

    Source: field report class: an error of its own, raised while an expected one is handled
    """
    try:
        _get_default_store().wait(["latest"], timedelta(seconds=1))
    except RuntimeError:
        if world.is_primary:
            raise ValueError("no checkpoint to start from")  # noqa: B904 - as programs do
    meet()


@pytest.fixture
def loaded_by_all(world) -> None:
    """Load a checkpoint on all ranks; the primary finds it broken."""
    if world.is_primary:
        raise ValueError("broken checkpoint")
    dist.barrier()


@hang(
    "raised",
    ranks=3,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2],
    by=BY_RAISE,
    outcome=("error", "failed"),
)
def test_fixture_raises_in_setup(world, loaded_by_all) -> None:
    """A fixture raises on the primary while the others are in its barrier.

    Source: https://github.com/NVIDIA/Megatron-LM/issues/7572
    """


@pytest.fixture
def saved_by_all(world) -> object:
    """Save on all ranks afterwards; one of them cannot."""
    yield
    if world.rank == 1:
        raise OSError("disk quota exceeded")
    dist.barrier()


@hang(
    "raised",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=BY_RAISE,
    outcome=("error", "failed"),
)
def test_finalizer_raises(world, saved_by_all) -> None:
    """A finalizer raises on one rank while the others are in its barrier.

    Source: https://github.com/NVIDIA/Megatron-LM/issues/4139
    """
    meet()


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2, 3],
    by=("mismatch", "proof"),
)
def test_barrier_in_a_finally(world) -> None:
    """An error on its way out is held up by a barrier in `finally`, the others reduce.

    Source: https://github.com/deepspeedai/DeepSpeed/issues/7334
    """
    meet()
    try:
        if world.rank == 1:
            raise ValueError("bad shard")
        meet()
    finally:
        dist.barrier()
