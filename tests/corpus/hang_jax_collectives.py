"""Collectives of jax that not all processes run, or not the same ones."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from expectation import hang
from jax._src.distributed import global_state
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mishaps import cut_off, signalled_by_a_child


def sharding(*axes: str, order: int = 1) -> NamedSharding:
    """Return a sharding over all devices of the world, in their order or, by -1, in the reverse."""
    return NamedSharding(Mesh(np.array(jax.devices()[::order]), ("x",)), PartitionSpec(*axes))


def spread(order: int = 1) -> jax.Array:
    """Return an array with one element on each device, made without any collective."""
    size, over = len(jax.devices()), sharding("x", order=order)
    return jax.make_array_from_callback((size,), over, lambda _: np.ones(1, np.float32))


def total(array: jax.Array) -> jax.Array:
    """Sum up an array: an all-reduce."""
    return jax.block_until_ready(jax.jit(jnp.sum, out_shardings=sharding())(array))


def whole(array: jax.Array) -> jax.Array:
    """Replicate an array: an all-gather."""
    return jax.block_until_ready(jax.jit(lambda x: x + 1, out_shardings=sharding())(array))


@hang(
    "straggler",
    ranks=4,
    backend="jax",
    local_devices=2,
    culprits=[0],
    waiting=[1, 2, 3],
    where="time.sleep(600)",
)
def test_primary_reads_before_the_broadcast(world) -> None:
    """The primary replica reads for ever, the others have entered the jitted broadcast.

    Source: https://github.com/google/orbax/issues/3181
    """
    total(spread())
    if world.is_primary:
        time.sleep(600)
    total(spread())


@hang("straggler", ranks=2, backend="jax", culprits=[1], waiting=[0], timeout=60)
def test_first_collective_without_one(world) -> None:
    """The very first collective connects the processes, and one does not come.

    Source: https://github.com/google/orbax/issues/3181
    """
    if world.rank == 1:
        threading.Event().wait()
    total(spread())


@hang("straggler", ranks=3, backend="jax", culprits=[0], waiting=[1, 2], timeout=60)
def test_first_sync_without_the_primary(world) -> None:
    """The primary is busy elsewhere for longer than connecting the processes may take.

    Source: https://github.com/google/orbax/issues/3181
    """
    if world.is_primary:
        time.sleep(600)
    multihost_utils.sync_global_devices("start")


@hang("straggler", ranks=8, backend="jax", culprits=[6], waiting=[0, 1, 2, 3, 4, 5, 7])
def test_one_of_eight_stops_entering(world) -> None:
    """At step three one of eight is alive, keeps its heartbeat and enters no more.

    Source: https://github.com/jax-ml/jax/issues/38503
    """
    array = spread()
    for step in range(5):
        if step == 3 and world.rank == 6:
            time.sleep(600)
        total(array)


@hang("finished", ranks=2, backend="jax", local_devices=2, culprits=[1], waiting=[0])
def test_logs_a_global_value_on_the_primary(world) -> None:
    """The primary alone logs a sum of a global array, which is a collective.

    Source: field report class: a hidden collective in a log statement
    """
    array = spread()
    if world.is_primary:
        print(float(array.sum()))


@hang("finished", ranks=2, backend="jax", culprits=[1], waiting=[0])
def test_device_put_onto_a_global_sharding(world) -> None:
    """One process alone puts a host array onto a global sharding, which compares it with all.

    Source: https://github.com/google/orbax/issues/3181 (hidden check in device_put, jax >= 0.8)
    """
    if world.is_primary:
        jax.device_put(np.ones(4, np.float32), sharding())


@hang("straggler", ranks=3, backend="jax", culprits=[2], waiting=[0, 1])
def test_allgather_before_a_slow_compile(world) -> None:
    """Two processes gather their step, the third waits for a lock of its own.

    Source: https://github.com/marin-community/marin/issues/8534
    """
    if world.rank == 2:
        lock = threading.Lock()
        with lock:
            lock.acquire()
    multihost_utils.process_allgather(jnp.ones(1))


@hang("mismatch", ranks=2, backend="jax", by=("proof", "mismatch"))
def test_programs_differ(world) -> None:
    """One process sums, the other replicates: programs compiled from different flags.

    Source: https://github.com/openxla/xla/pull/36981
    """
    array = spread()
    total(array)
    if world.is_primary:
        total(array * 2)
    else:
        whole(array)
    total(array)


@hang(
    "mismatch",
    ranks=2,
    backend="jax",
    by=("proof", "mismatch"),
)
def test_programs_in_opposite_order(world) -> None:
    """Both run the same two programs, in opposite order.

    Source: https://github.com/NVIDIA/apex/pull/18 (order of a dict differs per process)
    """
    array = spread()
    steps = [total, whole]
    for step in steps if world.is_primary else reversed(steps):
        step(array)


@hang("mismatch", ranks=3, backend="jax", culprits=[2], waiting=[0, 1])
def test_one_evaluates_while_the_others_train(world) -> None:
    """Both programs sum up, on devices in different orders: only their lines tell them apart.

    Source: field report class: a flag that differs on one process lets it run another program
    """
    total(spread())
    if world.rank == 2:
        evaluate = jax.jit(jnp.sum, out_shardings=sharding(order=-1))
        jax.block_until_ready(evaluate(spread(order=-1)))
    total(spread())


@hang("deadlock", ranks=2, backend="jax")
def test_collective_against_barrier(world) -> None:
    """One process is in a collective, the other in a barrier of the coordination service.

    Source: https://github.com/marin-community/marin/pull/8538
    """
    array = spread()
    total(array)
    if world.is_primary:
        total(array)
    global_state.client.wait_at_barrier("saved", 600_000)
    total(array)


@hang("raised", ranks=3, backend="jax", culprits=[0], waiting=[1, 2], by=("raise",))
def test_primary_raises_before_the_broadcast(world) -> None:
    """The primary fails to prepare its arrays, the others are in the broadcast.

    Source: https://github.com/google/orbax/issues/3184
    """
    total(spread())
    if world.is_primary:
        raise ValueError("incompatible devices for jitted computation")
    total(spread())


@hang("died", ranks=3, backend="jax", culprits=[2], waiting=[0, 1], by=("exit",))
def test_killed_during_a_step(world) -> None:
    """A process is gone, the others are in the collective of the step.

    Source: https://github.com/jax-ml/jax/issues/38503 (the case that heartbeats do catch)
    """
    total(spread())
    if world.rank == 2:
        time.sleep(2)  # both are there, on a busy machine too
        os.kill(os.getpid(), signal.SIGKILL)
    total(spread())


@hang("stopped", ranks=2, backend="jax", culprits=[0], waiting=[1], by=("stopped",))
def test_coordinator_is_stopped(world) -> None:
    """The process that hosts the coordination service is stopped.

    Source: field report class: the first host is suspended or swaps
    """
    total(spread())
    if world.is_primary:
        signalled_by_a_child("STOP").wait()
    total(spread())


@hang("gil_held", ranks=2, backend="jax", local_devices=2, culprits=[1], waiting=[0])
def test_callback_holds_the_gil(world) -> None:
    """An extension called between two steps sleeps with the GIL held.

    Source: https://github.com/hw-native-sys/simpler/issues/721
    """
    total(spread())
    if world.rank == 1:
        ctypes.PyDLL(None).sleep(600)
    total(spread())


@hang(
    "transport",
    ranks=2,
    backend="jax",
    culprits=[],
    waiting=None,
    also=[{"kind": "transport", "culprits": [1]}],
    why="the cut-off rank may be named where evidence names it",
)
def test_link_is_dead(world) -> None:
    """Both enter the collective, and nothing reaches process 1 any more.

    Source: field report class: a link that drops everything
    """
    total(spread())
    if world.rank == 1:
        assert cut_off()
    world.barrier("cut off")
    total(spread())


@hang("livelock", ranks=2, backend="jax", culprits=[0], waiting=[1], by=("deadline",))
def test_primary_polls_for_a_marker(world, shared_tmp_path) -> None:
    """The primary polls for the commit marker of a checkpoint that was never begun.

    Source: https://github.com/ByteDance-Seed/VeOmni/pull/1172 (partial publish of a checkpoint)
    """
    while world.is_primary and not (shared_tmp_path / "commit_success.txt").exists():
        time.sleep(0.1)
    total(spread())


@hang("mismatch", ranks=2, backend="jax")
def test_save_on_the_primary_against_the_next_step(world, shared_tmp_path) -> None:
    """The primary alone saves, which all must do, the other is already in the next step's sum.

    Source: field report class: save_checkpoint under `if process_index() == 0`
    """
    total(spread())
    if world.is_primary:
        (shared_tmp_path / "manager").mkdir()
        manager = ocp.CheckpointManager(shared_tmp_path / "manager")
        manager.save(0, args=ocp.args.StandardSave({"weights": np.ones(4)}))
        manager.wait_until_finished()
    total(spread())


@hang("mismatch", ranks=3, backend="jax", culprits=[2], waiting=[0, 1])
def test_leaves_the_loop_after_a_bad_batch(world) -> None:
    """One process finds an infinite value in its part of a batch and goes to the last barrier.

    Source: field report class: a check of local data that ends the loop on one process
    """
    array = spread()
    for step in range(4):
        if step == 2 and world.rank == 2:
            break
        total(array)
    multihost_utils.sync_global_devices("trained")


@hang("mismatch", ranks=4, backend="jax", culprits=[3], waiting=[0, 1, 2])
def test_one_of_four_waits_at_another_barrier(world) -> None:
    """A process that has found no checkpoint waits at the barrier of a fresh start.

    Source: https://github.com/marin-community/marin/pull/8538 (names that differ per rank)
    """
    found = "fresh" if world.rank == 3 else "resumed"
    global_state.client.wait_at_barrier(found, 600_000)


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[1],
    waiting=[0, 2],
    by=("exit",),
    outcome=["crashed"],
)
def test_one_gathers_a_longer_list(world) -> None:
    """The process whose list of scores is longer is alive; gloo ends one of the others.

    Source: field report class: uneven batches gathered without padding
    """
    multihost_utils.sync_global_devices("evaluated")
    scores = np.zeros(11 if world.rank == 1 else 6, np.float32)
    multihost_utils.process_allgather(scores, tiled=True)


@hang("straggler", ranks=2, backend="jax", culprits=[0], waiting=[1])
def test_a_program_asks_the_host_and_gets_no_answer(world) -> None:
    """A callback, which jax runs on the primary, waits for a queue that no thread fills.

    Source: field report class: a logger that is called from a jitted step
    """
    answers: queue.Queue[int] = queue.Queue()

    def ask(_: jax.Array) -> None:
        if world.is_primary:
            answers.get()

    def step(x: jax.Array) -> jax.Array:
        jax.debug.callback(ask, jnp.float32(1))
        return x.sum()

    total(spread())
    jax.block_until_ready(jax.jit(step)(spread()))
    total(spread())
