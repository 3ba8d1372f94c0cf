"""Worlds of jax that are slow and fine."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from expectation import innocent
from jax._src.distributed import global_state
from jax.experimental import io_callback, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def meet() -> None:
    """Let all processes meet."""
    multihost_utils.process_allgather(jnp.ones(1))


@innocent(ranks=4, backend="jax", local_devices=2)
def test_primary_reads_for_five_seconds(world) -> None:
    """The primary is late at a collective that connects all processes for the first time.

    Source: https://github.com/google/orbax/issues/3181 (a primary that is merely slow)
    """
    if world.is_primary:
        time.sleep(5)
    meet()


@innocent(ranks=2, backend="jax")
def test_first_program_runs_long(world) -> None:
    """A program for the devices of all processes computes before its collective.

    Source: https://github.com/google/orbax/issues/3181 (suspected slow step)
    """
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    local = np.ones((1, 400, 400), np.float32) / 400
    array = jax.make_array_from_process_local_data(rows, local)
    steps = 3000 * (1 + world.rank)
    product = jax.lax.fori_loop(0, steps, lambda _, x: x @ x, array.addressable_data(0)[0])
    product.block_until_ready()
    total = jax.jit(
        lambda x: jax.lax.fori_loop(0, 3000, lambda _, y: y @ y, x).sum(),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )(array)
    assert total.is_fully_replicated


@innocent(ranks=2, backend="jax")
def test_connecting_fails_and_is_done_without(world) -> None:
    """No other process comes to the first collective; its caller goes on alone after the error.

    Source: field report class: a check of the cluster that may fail
    """
    if not world.is_primary:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            meet()
    world.barrier("checked")


@innocent(ranks=2, backend="jax")
def test_primary_compiles(world) -> None:
    """The primary compiles large programs of its own while the other is in a collective.

    Source: https://github.com/google/orbax/issues/3181 (suspected compilation)
    """
    meet()
    if world.is_primary:
        until = time.monotonic() + 4
        length = 60
        while time.monotonic() < until:
            length += 20
            jax.jit(lambda x, n=length: unrolled(x, n)).lower(jnp.ones(4)).compile()
    meet()


def unrolled(x: jax.Array, steps: int) -> jax.Array:
    """Return the result of a chain of operations, each of which is compiled."""
    for step in range(steps):
        x = jnp.sin(x) * (step + 1.0)
    return x


@innocent(ranks=2, backend="jax", local_devices=2)
def test_recompiles_at_each_step(world) -> None:
    """Each step has another shape, so both compile again and again.

    Source: field report class: dynamic shapes
    """
    until = time.monotonic() + 4
    step = 0
    while True:
        step += 1
        jax.jit(lambda x: (x @ x.T).sum())(np.ones((step, 8), np.float32)).block_until_ready()
        is_over = multihost_utils.process_allgather(np.int32(time.monotonic() > until))
        if is_over[0]:  # the primary decides, or the loops would be uneven
            break


@innocent(ranks=3, backend="jax")
def test_late_at_a_barrier_of_the_service(world) -> None:
    """One task comes to the barrier 4 s after the others.

    Source: https://github.com/marin-community/marin/pull/8538 (its fixed side)
    """
    if world.rank == 1:
        time.sleep(4)
    global_state.client.wait_at_barrier("restored", 60_000)


@innocent(ranks=2, backend="jax")
def test_key_is_published_late(world) -> None:
    """A process waits 4 s for the address that the other publishes.

    Source: field report class: late publication
    """
    client = global_state.client
    if world.is_primary:
        time.sleep(4)
        client.key_value_set("address", "here")
    assert client.blocking_key_value_get("address", 60_000) == "here"


@innocent(ranks=2, backend="jax")
def test_one_process_computes_on_its_own_device(world) -> None:
    """A process runs a long local program, the other is in a collective.

    Source: field report class: evaluation on one process
    """
    meet()
    if world.rank == 1:
        until = time.monotonic() + 4
        step = jax.jit(lambda x: x @ x / 100)
        x = jnp.ones((600, 600))
        while time.monotonic() < until:
            x = step(x).block_until_ready()
    meet()


@innocent(ranks=2, backend="jax")
def test_limit_of_a_barrier_is_expected(world) -> None:
    """The primary's barrier passes its limit, which is caught; the other waits for what then comes.

    Source: field report class: a barrier with a fallback
    """
    client = global_state.client
    if world.is_primary:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.wait_at_barrier("never", 6_000)
        client.key_value_set("went on", "1")
    else:
        client.blocking_key_value_get("went on", 600_000)


@innocent(ranks=3, backend="jax")
def test_one_program_under_three_names(world) -> None:
    """One gathers, one compares, one synchronizes, which is all the same; and one of them is late.

    Source: jax.experimental.multihost_utils of jax 0.10.2, where each calls the next
    """
    meet()
    if world.is_primary:
        multihost_utils.process_allgather(np.uint32([zlib.crc32(b"saved")]), tiled=True)
    elif world.rank == 1:
        multihost_utils.assert_equal(np.uint32([zlib.crc32(b"saved")]))
    else:
        time.sleep(5)
        multihost_utils.sync_global_devices("saved")
    meet()


@innocent(ranks=3, backend="jax")
def test_bystander_has_left_while_a_pair_works(world) -> None:
    """One of a pair is slow, the third process has nothing to do with it and has left.

    Source: field report class: replicas of which one has less to do
    """
    if world.rank == 2:
        return
    if world.rank == 1:
        time.sleep(5)
    pair = [each for each in jax.devices() if each.process_index < 2]
    mesh = Mesh(np.array(pair), ("x",))
    spread = NamedSharding(mesh, PartitionSpec("x"))
    array = jax.make_array_from_callback((mesh.size,), spread, lambda _: np.ones(1, np.float32))
    jax.block_until_ready(
        jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(array)
    )


@innocent(ranks=2, backend="jax")
def test_functions_of_other_names_have_the_same_collectives(world) -> None:
    """The primary runs its own function, which sums up like that of the others, after a while.

    Source: field report class: a subclass of the trainer on the primary
    """
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    array = jax.make_array_from_process_local_data(rows, np.ones((1, 4), np.float32))

    def on_primary(x: jax.Array) -> jax.Array:
        return x.sum()

    def on_others(x: jax.Array) -> jax.Array:
        return x.sum()

    step = jax.jit(on_primary if world.is_primary else on_others)
    for late in range(2):
        if world.rank == late:
            time.sleep(2)
        assert float(step(array)) == mesh.size * 4


@innocent(ranks=2, backend="jax")
def test_a_callback_of_one_process_is_slow(world) -> None:
    """The other one waits in the program meanwhile.

    Source: field report class: a logger that is called from a jitted step
    """
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    array = jax.make_array_from_process_local_data(rows, np.ones((1, 4), np.float32))

    def log(_: jax.Array) -> None:
        if world.is_primary:
            time.sleep(3)

    def step(x: jax.Array) -> jax.Array:
        jax.debug.callback(log, jnp.float32(1))
        return x.sum()

    for _ in range(2):
        jax.block_until_ready(jax.jit(step)(array))
    jax.effects_barrier()


def steps(count: int, *, waits: bool = True) -> jax.Array:
    """Run a program of all processes several times, and return its last result."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    array = jax.make_array_from_process_local_data(rows, np.ones((1, 8), np.float32))
    step = jax.jit(lambda x: x - 0.1 * x.mean())
    for _ in range(count):
        array = step(array)
        if waits:
            jax.block_until_ready(array)
    return array


@innocent(ranks=2, backend="jax")
def test_a_reporter_holds_a_lock_in_a_collective(world) -> None:
    """Its peer is late, and the main threads wait for the lock meanwhile.

    Source: a hunt for false verdicts.
    """
    lock, has_lock = threading.Lock(), threading.Event()

    def report() -> None:
        with lock:
            has_lock.set()
            time.sleep(3 * world.rank)
            meet()

    reporter = threading.Thread(target=report)
    reporter.start()
    has_lock.wait()
    with lock:
        steps(1)
    reporter.join()


@innocent(ranks=2, backend="jax")
def test_a_key_comes_long_after_one_like_it(world) -> None:
    """The primary has published another run before.

    Source: a hunt for false verdicts.
    """
    if world.is_primary:
        global_state.client.key_value_set("run-id", "6")
        time.sleep(3)
        global_state.client.key_value_set("run_id", "7")
    assert global_state.client.blocking_key_value_get("run_id", 60_000) == "7"


@innocent(ranks=3, backend="none")
def test_the_primary_shuts_down_long_before_the_others(world) -> None:
    """It waits for them there, and they wait for a key that another one of them sets.

    Source: a hunt for false verdicts.
    """
    jax.distributed.initialize()
    if world.rank == 2:
        time.sleep(3)
        global_state.client.key_value_set("weights", "2")
    if world.rank == 1:
        global_state.client.blocking_key_value_get("weights", 60_000)
    jax.distributed.shutdown()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@innocent(ranks=2, backend="jax")
def test_a_prefetcher_fails_and_is_replaced(world) -> None:
    """The main thread reads by itself then.

    Source: a hunt for false verdicts.
    """
    found: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: found.put(int("x")), daemon=True).start()
    with contextlib.suppress(queue.Empty):
        found.get(timeout=3)
    steps(2)


@innocent(ranks=3, backend="jax")
def test_many_programs_are_started_ahead(world) -> None:
    """Their results are waited for at the end.

    Source: a hunt for false verdicts.
    """
    if world.rank == 1:
        time.sleep(3)
    assert np.isfinite(steps(40, waits=False).addressable_data(0)).all()


@innocent(ranks=2, backend="jax")
def test_orbax_saves_while_the_primary_is_slow(world, shared_tmp_path) -> None:
    """And restores what it has saved.

    Source: a hunt for false verdicts.
    """
    manager = ocp.CheckpointManager(shared_tmp_path / "ckpt")
    for step in range(2):
        array = steps(1)
        time.sleep(2 * world.is_primary)
        manager.save(step, args=ocp.args.StandardSave({"w": array}))
    manager.wait_until_finished()
    manager.restore(1, args=ocp.args.StandardRestore({"w": array}))
    manager.close()


@innocent(ranks=2, backend="jax")
def test_an_ordered_callback_of_the_primary_sleeps(world) -> None:
    """Its program has a collective after that.

    Source: a hunt for false verdicts.
    """

    def read(value: np.ndarray) -> np.ndarray:
        time.sleep(3 * world.is_primary)
        return value

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        own = jax.pure_callback(read, jax.ShapeDtypeStruct((), np.float32), np.float32(1))
        return (x * own).sum()

    mesh = Mesh(np.array(jax.devices()), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    array = jax.make_array_from_process_local_data(rows, np.ones((1,), np.float32))
    assert float(step(array)) == world.size


@innocent(ranks=2, backend="jax")
def test_all_stop_because_one_host_is_preempted(world) -> None:
    """They agree on the step at which they save.

    Source: a hunt for false verdicts.
    """
    for step in range(40):
        steps(1)
        if world.is_primary and step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if multihost_utils.reached_preemption_sync_point(step):
            break
        time.sleep(0.05)
    multihost_utils.sync_global_devices(f"saved {step}")


@innocent(ranks=3, backend="jax")
def test_a_process_is_preempted_and_all_are_told(world) -> None:
    """It has a handler of its own; all gather their flags, and the primary saves slowly.

    Source: a hunt for false verdicts.
    """
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
    for step in range(6):
        if world.rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        if multihost_utils.process_allgather(np.int32(len(stops))).any():
            break
        steps(1)
    time.sleep(3 * world.is_primary)
    multihost_utils.sync_global_devices("saved")


@innocent(ranks=2, backend="jax")
def test_callbacks_of_one_process_wait_for_its_writer(world) -> None:
    """A program of process 1 alone fills a short queue, which a slow thread empties.

    Source: a hunt for false verdicts.
    """
    counted: queue.Queue[int] = queue.Queue(maxsize=1)

    def write() -> None:
        for _ in range(4):
            time.sleep(0.8)
            counted.get()

    @jax.jit
    def count(x: jax.Array) -> jax.Array:
        io_callback(lambda value: counted.put(int(value)), None, x, ordered=True)
        return x + 1

    steps(1)
    if world.rank == 1:
        writer = threading.Thread(target=write)
        writer.start()
        number = jnp.zeros((), jnp.int32)
        for _ in range(4):
            number = count(number)
        jax.effects_barrier()
        writer.join()
    steps(1)


@innocent(ranks=3, backend="jax")
def test_one_process_computes_on_after_the_last_sum(world) -> None:
    """Its program has a longer loop, without a collective, and the others have returned.

    Source: field report class: a solver that refines the part of one process
    """

    def solve(turns: jax.Array) -> jax.Array:
        def add(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return state[0] + 1, jax.lax.psum(state[1], "x") / 3

        def refine(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return state[0] + 1, jnp.sin(state[1])

        start = (jnp.int32(0), jnp.ones(1))
        total = jax.lax.while_loop(lambda state: state[0] < turns[0] % 7, add, start)[1]
        refined = jax.lax.while_loop(lambda state: state[0] < turns[0], refine, (start[0], total))
        return refined[1]

    mesh = Mesh(np.array(jax.devices()), ("x",))
    over = PartitionSpec("x")
    turns = 3 + 7 * (1 + 10_000_000 * (world.rank == 1))
    array = jax.make_array_from_callback(
        (mesh.size,), NamedSharding(mesh, over), lambda _: np.full(1, turns, np.int32)
    )
    solver = jax.jit(
        jax.shard_map(solve, mesh=mesh, in_specs=over, out_specs=over, check_vma=False)
    )
    jax.block_until_ready(solver(array))
