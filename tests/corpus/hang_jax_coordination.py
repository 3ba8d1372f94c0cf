"""Barriers and keys of jax's coordination service."""

from __future__ import annotations

import os
import signal
import time

import jax
from expectation import hang
from jax._src.distributed import global_state

LONG_MS = 600_000


def wait_at(name: str, processes: list[int] | None = None) -> None:
    """Wait at a barrier of all processes, or of some."""
    if processes is None:
        global_state.client.wait_at_barrier(name, LONG_MS)
    else:
        global_state.client.wait_at_barrier(name, LONG_MS, process_ids=processes)


@hang(
    "straggler",
    ranks=4,
    backend="jax",
    culprits=[2],
    waiting=[0, 1, 3],
    where="time.sleep(600)",
)
def test_barrier_without_one_task(world) -> None:
    """Three tasks are at the barrier after a restore, the fourth still reads.

    Source: https://github.com/marin-community/marin/pull/8538
    """
    if world.rank == 2:
        time.sleep(600)
    wait_at("restored")


@hang("finished", ranks=3, backend="jax", culprits=[1, 2], waiting=[0])
def test_barrier_inside_if_primary(world) -> None:
    """The primary alone waits at a barrier of all.

    Source: https://github.com/marin-community/marin/pull/8538
    """
    if world.is_primary:
        wait_at("saved")


@hang("deadlock", ranks=2, backend="jax", local_devices=2)
def test_two_barriers_in_opposite_order(world) -> None:
    """Two barriers are named after a counter that differs between the processes.

    Source: https://github.com/marin-community/marin/pull/8538 (counters that differ per rank)
    """
    for step in (0, 1) if world.is_primary else (1, 0):
        wait_at(f"step {step}")


@hang("straggler", ranks=3, backend="jax", culprits=[2], waiting=[0, 1])
def test_chain_of_barriers_of_some(world) -> None:
    """Process 0 waits for 1, which waits at a barrier of some for 2, which sleeps.

    Source: field report class: barriers of subsets of processes
    """
    if world.rank == 2:
        time.sleep(600)
    if world.rank == 1:
        wait_at("pair 1-2", [1, 2])
    wait_at("pair 0-1", [0, 1])


@hang(
    "straggler",
    ranks=2,
    backend="jax",
    culprits=[0],
    waiting=[1],
    also=[{"kind": "unknown", "culprits": []}],
    why="who provides a key is not known, but the only other process sleeps",
)
def test_key_of_a_sleeping_primary(world) -> None:
    """A process waits for the address that the primary has not published.

    Source: https://github.com/pytorch/pytorch/issues/129367 (the same on torch's store)
    """
    if world.is_primary:
        time.sleep(600)
    global_state.client.blocking_key_value_get("address", LONG_MS)


@hang(
    "unknown",
    ranks=3,
    backend="jax",
    also=[{"kind": "deadlock", "culprits": []}],
    why="no process is known to provide it, and none is left that could",
)
def test_key_that_nobody_sets(world) -> None:
    """All processes wait for a key that belongs to another job's namespace.

    Source: field report class: a key prefix that contains the attempt
    """
    global_state.client.blocking_key_value_get("attempt-2/ready", LONG_MS)


@hang("deadlock", ranks=2, backend="jax")
def test_shutdown_entered_early(world) -> None:
    """One process shuts the runtime down while the other is at a barrier.

    Source: https://github.com/marin-community/marin/pull/8295
    """
    if world.rank == 1:
        jax.distributed.shutdown()
    wait_at("last step")


@hang("died", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], by=("exit",))
def test_killed_while_others_are_at_a_barrier(world) -> None:
    """A task dies, the others are at a barrier of the service.

    Source: https://github.com/jax-ml/jax/issues/38503 (the case that heartbeats do catch)
    """
    if world.rank == 1:
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGKILL)
    wait_at("here")


@hang("raised", ranks=4, backend="jax", culprits=[3], waiting=[0, 1, 2], by=("raise",))
def test_raises_before_a_barrier(world) -> None:
    """One process cannot publish its part, the others wait to commit.

    Source: https://github.com/ByteDance-Seed/VeOmni/pull/1172
    """
    if world.rank == 3:
        raise OSError("copy failed")
    wait_at("commit")
