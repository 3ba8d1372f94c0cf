"""Hangs of jax from corners that the other files do not visit.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from arrays import service, spread
from expectation import hang
from jax.experimental import io_callback, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mishaps import FOREVER_S

from pytest_multihost import World

OVER = PartitionSpec("x")


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> jax.Array:
    """Return new weights; the mean over the batch needs all processes."""
    return weights - 0.1 * jnp.mean(batch)


def train(count: int) -> None:
    """Take steps, and wait for each."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    weights = jax.device_put(jnp.zeros(()), NamedSharding(mesh, PartitionSpec()))
    for _ in range(count):
        weights = jax.block_until_ready(train_step(weights, spread(1.0)))


@hang("finished", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], timeout=60)
def test_one_process_trains_a_step_less(world) -> None:
    """The shard of process 1 has a batch fewer."""
    train(4 - (world.rank == 1))


@hang("finished", ranks=3, backend="jax", culprits=[2], waiting=[0, 1], timeout=60)
def test_metrics_are_gathered_by_two_of_three(world) -> None:
    """Process 2 has no metrics and returns."""
    train(1)
    if world.rank != 2:
        multihost_utils.process_allgather(jnp.ones(3))


@hang(
    "straggler", ranks=2, backend="jax", culprits=[1], waiting=[0], where="time.sleep", timeout=60
)
def test_a_host_callback_sleeps(world) -> None:
    """The callback of process 1 reads from a disk that does not answer, before the step."""

    def read(value: np.ndarray) -> np.ndarray:
        if world.rank == 1:
            time.sleep(FOREVER_S)
        return value

    train(1)
    jax.block_until_ready(
        jax.jit(lambda x: jax.pure_callback(read, jax.ShapeDtypeStruct((), jnp.float32), x))(1.0)
    )
    train(1)


@hang("raised", ranks=3, backend="jax", culprits=[0], waiting=[1, 2], by=("raise",), timeout=60)
def test_the_primary_cannot_read_what_it_broadcasts(world, shared_tmp_path) -> None:
    """The configuration is missing on process 0; the others wait for its broadcast."""
    config = np.zeros(2)
    if world.is_primary:
        config = np.frombuffer((shared_tmp_path / "config").read_bytes())
    multihost_utils.broadcast_one_to_all(config)


@hang("straggler", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], where="get()", timeout=60)
def test_a_prefetcher_that_was_never_started(world) -> None:
    """Process 1 takes its batch from a queue without a producer."""
    train(2)
    if world.rank == 1:
        queue.Queue[int]().get()
    train(1)


@hang(
    "straggler", ranks=4, backend="jax", culprits=[3], waiting=[0, 1, 2], where="sleep", timeout=60
)
def test_the_last_process_saves_alone_before_a_sync(world) -> None:
    """Process 3 writes to storage that does not answer, the others are in the sync."""
    train(1)
    if world.rank == 3:
        time.sleep(FOREVER_S)
    multihost_utils.sync_global_devices("saved")


def gather() -> None:
    """Let all processes give one value."""
    multihost_utils.process_allgather(np.float32(1))


@hang("mismatch", ranks=3, backend="jax", culprits=[1], by=("raise",), outcome=["failed"])
def test_one_process_skips_a_save_of_orbax(world, shared_tmp_path) -> None:
    """Process 1 has another interval between its saves: the names of syncs differ on all."""
    manager = ocp.CheckpointManager(shared_tmp_path / "ckpt")
    if world.rank != 1:
        manager.save(1, args=ocp.args.StandardSave({"w": np.ones(4)}))
    train(1)
    manager.wait_until_finished()


@hang("mismatch", ranks=3, backend="jax", culprits=[0], waiting=[1, 2], timeout=60)
def test_the_source_broadcasts_alone(world) -> None:
    """The others go on to train."""
    train(1)
    if world.is_primary:
        multihost_utils.broadcast_one_to_all(np.ones(3))
    train(1)


@hang("mismatch", ranks=3, backend="jax", culprits=[2], by=("raise",), outcome=["failed"])
def test_one_process_never_asks_whether_it_is_to_stop(world) -> None:
    """Process 2 trains on; its sum fits the sync of the others, who see another value there."""
    for step in range(20):
        train(1)
        if world.is_primary and step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        if world.rank != 2 and multihost_utils.reached_preemption_sync_point(step):
            break
    multihost_utils.sync_global_devices("saved")


@hang("straggler", ranks=2, backend="jax", culprits=[0], waiting=[1], where="get()", timeout=60)
def test_a_callback_waits_for_a_queue(world) -> None:
    """Nobody puts anything into the queue of the primary, on which jax runs the callback."""
    mailbox: queue.Queue[int] = queue.Queue()

    def log(_: object) -> None:
        mailbox.get()

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        jax.debug.callback(log, x.sum(), ordered=False)
        return x.sum()

    jax.block_until_ready(step(spread(1.0)))
    jax.effects_barrier()
    gather()


@hang("straggler", ranks=2, backend="jax", culprits=[0], waiting=[1], where="os.read", timeout=60)
def test_the_primary_reads_a_pipe_before_it_trains(world) -> None:
    """The other end of the pipe is its own."""
    train(1)
    if world.is_primary:
        reader, _writer = os.pipe()
        os.read(reader, 1)
    train(1)


@hang("raised", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], by=("raise",), timeout=60)
def test_one_process_cannot_decode_a_batch(world) -> None:
    """It raises between two steps."""
    train(2)
    if world.rank == 1:
        np.frombuffer(b"1234567", np.float32)
    train(1)


@hang("died", ranks=3, backend="jax", culprits=[2], waiting=[0, 1], by=("exit",), timeout=60)
def test_one_process_exits_in_the_middle(world) -> None:
    """A library ends it between two steps."""
    train(2)
    if world.rank == 2:
        os._exit(3)
    train(1)


@hang("straggler", ranks=2, backend="jax", culprits=[0], waiting=[1], where="result()", timeout=60)
def test_a_future_that_is_never_done(world) -> None:
    """The worker of the primary waits for an event."""
    if world.is_primary:
        with ThreadPoolExecutor() as pool:
            pool.submit(threading.Event().wait).result()
    gather()


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[0],
    waiting=[1, 2],
    timeout=60,
    also=[{"kind": "deadlock", "culprits": []}],
    why="the lock makes it a circle, and two of three agree",
)
def test_a_reporter_holds_the_lock_of_the_devices(world) -> None:
    """The reporter of the primary comes before its step, those of the others after theirs."""
    report_under_a_lock(world)


@hang(
    "deadlock",
    ranks=2,
    backend="jax",
    waiting=[0, 1],
    timeout=60,
)
def test_the_same_with_two_processes(world) -> None:
    """Either may be right, and the lock makes it a circle."""
    report_under_a_lock(world)


def report_under_a_lock(world: World) -> None:
    """Meet in a thread under a lock, before the step on the primary, after it elsewhere."""
    lock, has_lock = threading.Lock(), threading.Event()

    def report() -> None:
        with lock:
            has_lock.set()
            service().wait_at_barrier("reports", 600_000)

    train(1)
    reporter = threading.Thread(target=report, daemon=True)
    if world.is_primary:
        reporter.start()
        has_lock.wait()
    with lock:
        train(1)
    if not world.is_primary:
        reporter.start()
    reporter.join()


@hang("straggler", ranks=2, backend="jax", culprits=[0], waiting=[1], timeout=60)
def test_a_callback_needs_the_lock_of_its_caller(world) -> None:
    """The primary holds a lock while it waits for a program that logs under that lock."""
    lock = threading.Lock()

    def log(value: np.ndarray) -> np.ndarray:
        with lock:
            return value

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        own = jax.pure_callback(log, jax.ShapeDtypeStruct((), np.float32), np.float32(1))
        return (x * own).sum()

    gather()
    with lock:
        jax.block_until_ready(step(spread(1.0)))


@hang("finished", ranks=2, backend="jax", culprits=[0], waiting=[1], waits_at="ckpt/2", timeout=60)
def test_a_key_of_another_step(world) -> None:
    """The primary has published the step before."""
    if world.is_primary:
        service().key_value_set("ckpt/1", "done")
    else:
        service().blocking_key_value_get("ckpt/2", 600_000)


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[2],
    waiting=[0, 1],
    timeout=60,
    also=[{"kind": "deadlock", "culprits": []}],
    why="the one waits for the others to shut down, too",
)
def test_the_last_process_shuts_down_before_it_has_set_its_key(world) -> None:
    """The others wait for the key."""
    if world.rank == 2:
        jax.distributed.shutdown()
    service().blocking_key_value_get("metrics/2", 600_000)


@hang(
    "livelock",
    ranks=2,
    backend="jax",
    culprits=[0],
    waiting=[1],
    by=("deadline",),
    timeout=12,
    also=[{"kind": "straggler", "culprits": [0]}],
    why="it sleeps most of the time",
)
def test_the_primary_polls_for_a_key_that_nobody_sets(world) -> None:
    """The other process is at a barrier."""
    while world.is_primary:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            service().key_value_try_get("go")
            break
        time.sleep(0.05)
    service().wait_at_barrier("gone", 600_000)


@hang("mismatch", ranks=3, backend="jax", culprits=[1], by=("raise",), outcome=["failed"])
def test_one_process_has_another_seed(world) -> None:
    """All compare their configuration, and the comparison fails on all."""
    multihost_utils.assert_equal(np.int32(7 + (world.rank == 1)), "seeds differ")


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[0],
    by=("exit", "proof", "mismatch", "raise"),
    outcome=["crashed", "hung", "failed"],
    timeout=60,
)
def test_the_source_broadcasts_a_longer_array(world) -> None:
    """Its vocabulary has more words."""
    multihost_utils.broadcast_one_to_all(np.ones(900 if world.is_primary else 800, np.float32))


@hang("mismatch", ranks=3, backend="jax", culprits=[1], by=("raise",), outcome=["failed"])
def test_only_the_preempted_process_saves(world) -> None:
    """The signal sets a flag there, which nobody tells the others; their mean fits its sync."""
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
    for step in range(6):
        if world.rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        if stops:
            multihost_utils.sync_global_devices("preempted")
        train(1)


@hang("finished", ranks=3, backend="jax", culprits=[0], waiting=[1, 2], timeout=60)
def test_the_preempted_primary_returns(world) -> None:
    """It has saved its state, and the others train on."""
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
    for step in range(6):
        if world.is_primary and step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        if stops:
            return
        train(1)


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[0],
    waiting=[1, 2],
    timeout=60,
    also=[{"kind": "deadlock", "culprits": []}, {"kind": "straggler", "culprits": [0]}],
    why="the step needs the barrier, and the barrier needs those in the step",
)
def test_a_callback_reports_at_a_barrier(world) -> None:
    """It runs on the primary alone, where it waits for all processes."""
    del world

    def report(value: np.ndarray) -> np.ndarray:
        service().wait_at_barrier("reported", 600_000)
        return value

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        own = io_callback(report, jax.ShapeDtypeStruct((), np.float32), np.float32(1))
        return (x * own).sum()

    train(1)
    jax.block_until_ready(step(spread(1.0)))


@hang("straggler", ranks=2, backend="jax", culprits=[1], waiting=[0], where="put(", timeout=60)
def test_a_callback_of_one_process_fills_its_queue(world) -> None:
    """A program of process 1 alone hands on what it has counted, and nobody takes it."""
    counted: queue.Queue[int] = queue.Queue(maxsize=2)

    def hand_on(value: np.ndarray) -> None:
        counted.put(int(value))

    @jax.jit
    def count(x: jax.Array) -> jax.Array:
        io_callback(hand_on, None, x, ordered=True)
        return x + 1

    train(1)
    number = jnp.zeros((), jnp.int32)
    for _ in range(3 if world.rank == 1 else 2):
        number = count(number)
    jax.effects_barrier()
    train(1)


def run_inside(
    local: Callable[[jax.Array], jax.Array], own: float, kind: type = np.float32
) -> None:
    """Run a function on all devices, each with a value of its process, and wait for the result."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    array = jax.make_array_from_callback(
        (mesh.size,), NamedSharding(mesh, OVER), lambda _: np.full(1, own, kind)
    )
    step = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=OVER, out_specs=OVER, check_vma=False))
    jax.block_until_ready(step(array))


def solve(turns: jax.Array) -> jax.Array:
    """Sum up in a loop, which turns as often as a process says."""

    def turn(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        count, total = state
        return count + 1, jax.lax.psum(total, "x") / 2

    first = (jnp.int32(0), jnp.ones(1))
    return jax.lax.while_loop(lambda state: state[0] < turns[0], turn, first)[1]


@hang(
    "finished",
    ranks=3,
    backend="jax",
    culprits=[0, 2],
    waiting=[1],
    waits_at="block_until_ready",
    timeout=60,
)
def test_a_loop_on_the_devices_turns_once_more(world) -> None:
    """One program for all; how often its loop turns is a value of each process's own.

    Source: field report class: a collective in a loop that stops by a local value
    """
    run_inside(solve, 3 + (world.rank == 1), np.int32)


@hang("finished", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], timeout=60)
def test_a_loop_on_the_devices_turns_once_less(world) -> None:
    """One process converges a turn earlier, and returns.

    Source: field report class: a collective in a loop that stops by a local value
    """
    run_inside(solve, 4 - (world.rank == 1), np.int32)


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[1],
    also=[{"kind": "deadlock", "culprits": []}],
    why="a barrier of the service and a loop need not count as operations of one group",
    timeout=60,
)
def test_a_loop_turns_once_more_while_others_are_at_a_barrier(world) -> None:
    """The others have their result, and wait where one process does not come.

    Source: field report class: a collective in a loop that stops by a local value
    """
    run_inside(solve, 3 + (world.rank == 1), np.int32)
    service().wait_at_barrier("solved", 600_000)


@hang(
    "finished",
    ranks=3,
    backend="jax",
    culprits=[0, 2],
    waiting=[1],
    waits_at="block_until_ready",
    timeout=60,
)
def test_one_process_takes_the_branch_with_a_sum(world) -> None:
    """Its own gradients are not finite, so its program sums up once more.

    Source: field report class: a collective in a branch that depends on a local value
    """

    def step(x: jax.Array) -> jax.Array:
        total = jax.lax.psum(x, "x")
        is_bad = ~jnp.isfinite(x[0])
        return jax.lax.cond(is_bad, lambda: jax.lax.psum(x, "x"), lambda: total)

    run_inside(step, np.nan if world.rank == 1 else 1.0)


@hang(
    "finished",
    ranks=3,
    backend="jax",
    culprits=[0, 2],
    waiting=[1],
    also=[{"kind": "mismatch", "culprits": [1]}],
    why="the programs differ, and the others' is over",
    timeout=60,
)
def test_one_process_scans_a_microbatch_more(world) -> None:
    """The number of microbatches is compiled into the step.

    Source: field report class: gradient accumulation by a local setting
    """
    count = 3 + (world.rank == 1)

    def accumulate(x: jax.Array) -> jax.Array:
        def add(total: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.psum(total, "x") / 3, None

        return jax.lax.scan(add, x, None, length=count, unroll=1)[0]

    run_inside(accumulate, 1.0)


@hang("mismatch", ranks=3, backend="jax", culprits=[2], waiting=[0, 1], timeout=60)
def test_one_process_passes_on_in_the_other_direction(world) -> None:
    """Its program sends to the one before it, the others send to the next one.

    Source: field report class: a ring of which one process has another order
    """
    step = 2 if world.rank == 2 else 1
    ways = [(each, (each + step) % 3) for each in range(3)]

    def shift(x: jax.Array) -> jax.Array:
        return jax.lax.ppermute(x, "x", ways)

    run_inside(shift, 1.0)
