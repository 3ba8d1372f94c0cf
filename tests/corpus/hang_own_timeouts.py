"""The runtime's own timeout strikes the ranks that wait: a symptom, not the cause."""

from __future__ import annotations

import time
from datetime import timedelta

import jax.numpy as jnp
import torch
import torch.distributed as dist
from expectation import HANG_TIMEOUT_S, hang
from jax._src.distributed import global_state
from jax.experimental import multihost_utils
from torch.distributed.distributed_c10d import _get_default_store

TWO_S = timedelta(seconds=2)
BY = ("proof", "raise")
"""The runtime's limit and a proof are about equally fast."""


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang("straggler", ranks=4, backend="gloo", culprits=[0], waiting=[1, 2, 3], by=BY)
def test_group_timeout_of_the_waiters(world) -> None:
    """The waiters' group times out after 2 s while the primary sleeps on.

    Source: https://github.com/instructlab/training/pull/566
    """
    group = dist.new_group(timeout=TWO_S)
    meet(group)
    if world.is_primary:
        time.sleep(600)
    meet(group)


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2],
    # A sleep of 8 s may end: there is no proof, and when it is told depends on when the ranks end.
    by=("deadline", "raise", "proof"),
    timeout=HANG_TIMEOUT_S,
)
def test_primary_slower_than_the_limit(world) -> None:
    """The primary reads for 8 s, the limit is 2 s: when it comes everybody fails.

    Source: https://github.com/google/orbax/issues/3181
    """
    group = dist.new_group(timeout=TWO_S)
    meet(group)
    if world.is_primary:
        time.sleep(8)
    meet(group)


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY)
def test_monitored_barrier_names_a_rank(world) -> None:
    """The primary's monitored barrier fails for the rank that sleeps.

    Source: https://github.com/pytorch/pytorch/issues/77030
    """
    meet()
    if world.rank == 2:
        time.sleep(600)
    dist.monitored_barrier(timeout=TWO_S)


@hang(
    "straggler",
    ranks=2,
    backend="gloo",
    culprits=[0],
    waiting=[1],
    by=BY,
    also=[{"kind": "unknown", "culprits": []}],
    why="who provides a key is not known, but the only other rank sleeps",
)
def test_store_times_out(world) -> None:
    """Waiting for a key times out while the rank that was to set it sleeps.

    Source: https://github.com/pytorch/pytorch/issues/53840
    """
    if world.is_primary:
        time.sleep(600)
    _get_default_store().wait(["ready"], TWO_S)


@hang("straggler", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], by=BY)
def test_coordination_barrier_times_out(world) -> None:
    """The service's barrier times out for all but the task that sleeps.

    Source: https://github.com/marin-community/marin/pull/8538
    """
    if world.rank == 1:
        time.sleep(600)
    global_state.client.wait_at_barrier("restored", 2000)


@hang(
    "straggler",
    ranks=2,
    backend="jax",
    culprits=[0],
    waiting=[1],
    by=BY,
    env={"XLA_FLAGS": "--xla_cpu_collective_timeout_seconds=3"},
)
def test_xla_collective_times_out(world) -> None:
    """XLA gives up the collective after its limit, the primary still sleeps.

    Source: https://github.com/google/orbax/issues/3181
    """
    multihost_utils.process_allgather(jnp.ones(1))
    if world.is_primary:
        time.sleep(600)
    multihost_utils.process_allgather(jnp.ones(1))


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY)
def test_timeout_after_one_has_left(world) -> None:
    """The group of the waiters times out, the missing rank has returned from the test.

    Source: https://github.com/pytorch/pytorch/issues/77562
    """
    group = dist.new_group(timeout=TWO_S)
    meet(group)
    if world.rank == 2:
        return
    meet(group)


@hang("straggler", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=BY)
def test_timeout_is_wrapped_by_another_error(world) -> None:
    """The waiters' limit strikes, and their trainer raises its own error from that.

    Source: field report class: a trainer's own exception hides the runtime's
    """
    group = dist.new_group(timeout=TWO_S)
    meet(group)
    if world.is_primary:
        time.sleep(600)
    try:
        meet(group)
    except RuntimeError as error:
        raise ValueError("step 3 failed") from error


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[0],
    waiting=None,
    by=("deadline",),
    also=[{"kind": "stuck", "culprits": [0]}],
    why="in between two tries nobody waits",
    timeout=HANG_TIMEOUT_S,
)
def test_failed_collective_is_tried_again_for_ever(world) -> None:
    """The waiters' limit strikes; they catch it and try again, which fails at once each time.

    Source: field report class: endless retries without a limit or a message
    """
    group = dist.new_group(timeout=TWO_S)
    if world.is_primary:
        time.sleep(600)
    while True:
        try:
            meet(group)
            break
        except RuntimeError:
            time.sleep(0.2)
