from __future__ import annotations

import inspect
import linecache
import os
import pickle
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.experimental.multihost_utils import (
    assert_equal,
    broadcast_one_to_all,
    process_allgather,
    sync_global_devices,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytest_multihost import World
from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.rank.recorder.jax import install
from pytest_multihost.core.slots import SlotPage, read_slots, slots_path
from pytest_multihost.testing import RUNTIME_SCOPE, Operation, Scope

pytestmark = pytest.mark.multihost(ranks=2, backend="jax", local_devices=2, timeout=60)

TIMEOUT_MS = 50_000


@dataclass(frozen=True)
class Records:
    """The slot pages of all ranks, written from now on."""

    world: World
    directory: Path
    recorder: Recorder

    def of(self, rank: int) -> tuple[Operation, ...]:
        return read_slots(slots_path(self.directory, rank), rank=rank).recent

    @property
    def ours(self) -> tuple[Operation, ...]:
        return self.of(self.world.rank)

    def await_open(self, rank: int) -> Operation:
        """Wait until `rank` is in an operation, and return it."""
        page = slots_path(self.directory, rank)
        while not (found := read_slots(page, rank=rank).open):
            time.sleep(0.005)
        (operation,) = found
        return operation


@pytest.fixture
def records(world: World, shared_tmp_path: Path) -> Records:
    """Have every rank note what it does."""
    page = SlotPage.create(slots_path(shared_tmp_path, world.rank))
    recorder = Recorder(page, world.rank, world.size)
    install(recorder)
    world.barrier()
    return Records(world, shared_tmp_path, recorder)


@pytest.fixture
def mesh() -> Mesh:
    """All devices in a row."""
    return jax.make_mesh((jax.device_count(),), ("x",))


def _client() -> Any:  # noqa: ANN401 - of jaxlib
    return jax._src.distributed.global_state.client


def _sum(mesh: Mesh, values: np.ndarray | None = None) -> jax.Array:
    """Add over all devices what each has, in a jitted function."""
    values = np.arange(mesh.size, dtype=np.float32) if values is None else values
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda x: x.sum(), out_shardings=everywhere)(_spread(mesh, values))


def _spread(mesh: Mesh, values: np.ndarray) -> jax.Array:
    """Give each device its part."""
    return jax.make_array_from_callback(
        values.shape, NamedSharding(mesh, PartitionSpec("x")), lambda index: values[index]
    )


def _call_late(
    records: Records, call: Callable[[], object], late: int = 0, waiter: int = 1
) -> Operation | None:
    """Call it in all ranks; in the late one only when the waiter is seen to wait."""
    seen = records.await_open(waiter) if records.world.rank == late else None
    call()
    return seen


@pytest.mark.parametrize(
    ("name", "call", "detail"),
    [
        ("sync_global_devices", lambda: sync_global_devices("here"), "here"),
        ("process_allgather", lambda: process_allgather(np.ones((3, 2))), "float64[3, 2]"),
        ("process_allgather", lambda: process_allgather(np.ones(3), True), "float64[3]"),
        (
            "process_allgather",
            lambda: process_allgather(in_tree={"a": np.int8(1), "b": 2.0}, tiled=True),
            "int8[], float[]",
        ),
        ("broadcast_one_to_all", lambda: broadcast_one_to_all(np.ones(3)), "float64[3]"),
        ("assert_equal", lambda: assert_equal(np.ones(3)), "float64[3]"),
        ("assert_equal", lambda: assert_equal(1, "all alike"), "all alike"),
    ],
)
def test_a_rank_that_waits_in_multihost_utils_is_seen_there(
    records: Records, name: str, call: Callable[[], object], detail: str
) -> None:
    """Whoever looks from outside reads what it waits in, for whom, and which one it is."""
    call()
    records.world.barrier()
    seen = _call_late(records, call)
    if seen is not None:
        assert (seen.name, seen.kind, seen.detail) == (name, "collective", detail)
        assert (seen.group, seen.scope, seen.sequence) == ((0, 1), RUNTIME_SCOPE, 2)
        assert seen.waited_s is not None
        assert seen.frame is not None
        assert seen.frame.file == __file__
    assert [each.name for each in records.ours] == [name, name]
    assert not [each for each in records.ours if each.is_open or each.failed]


def test_a_check_hidden_in_device_put_is_seen(records: Records, mesh: Mesh) -> None:
    """It compares the values of all processes, which nobody expects of it."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    seen = _call_late(records, lambda: jax.device_put(np.ones(3), everywhere))
    assert seen is None or (seen.name, seen.kind) == ("assert_equal", "collective")


@pytest.mark.multihost(ranks=3)
def test_a_barrier_is_known_by_its_id_and_its_processes(records: Records) -> None:
    """A rank that waits at another barrier is not at this one."""
    if records.world.rank == 1:  # not asked for at the second
        _client().wait_at_barrier("everybody", TIMEOUT_MS)
    else:
        seen = _call_late(
            records, lambda: _client().wait_at_barrier("two", TIMEOUT_MS, process_ids=[2, 0]), 0, 2
        )
        _client().wait_at_barrier("everybody", TIMEOUT_MS, None)
        assert seen is None or (seen.detail, seen.timeout_s) == ("two", TIMEOUT_MS / 1000)
    records.world.barrier()
    noted = {
        rank: [(each.group, each.scope, each.sequence) for each in records.of(rank)]
        for rank in range(3)
    }
    everybody, two = (
        ((0, 1, 2), Scope("barrier", "everybody"), 1),
        ((0, 2), Scope("barrier", "two"), 1),
    )
    assert noted == {0: [two, everybody], 1: [everybody], 2: [two, everybody]}


def test_a_barrier_that_is_used_again_is_counted(records: Records) -> None:
    """The service lets an id be used again when everybody has passed."""
    for _ in range(3):
        _client().wait_at_barrier("again", TIMEOUT_MS)
    assert [each.sequence for each in records.ours] == [1, 2, 3]


def test_a_barrier_that_fails_raises_what_it_raised(records: Records) -> None:
    """And is noted as left by an exception."""
    if records.world.is_primary:
        with pytest.raises(jax.errors.JaxRuntimeError, match="DEADLINE_EXCEEDED"):
            _client().wait_at_barrier("nobody comes", 100)
        (barrier,) = records.ours
        assert barrier.failed
        with pytest.raises(TypeError, match="incompatible function arguments"):
            _client().wait_at_barrier()
        assert records.ours == (barrier,)


def test_a_wait_for_a_key_is_seen(records: Records) -> None:
    """Of whom it is expected, nobody knows."""
    seen: list[Operation] = []
    if records.world.is_primary:
        seen.append(records.await_open(1))
        _client().key_value_set("the key", "the value")
        records.world.barrier()
        seen.append(records.await_open(1))
        _client().key_value_set_bytes("other key", b"\0")
    else:
        assert _client().blocking_key_value_get("the key", TIMEOUT_MS) == "the value"
        records.world.barrier()
        assert _client().blocking_key_value_get_bytes("other key", TIMEOUT_MS) == b"\0"
    assert [(each.kind, each.name, each.detail) for each in seen] in (
        [],
        [
            ("wait", "blocking_key_value_get", "the key"),
            ("wait", "blocking_key_value_get_bytes", "other key"),
        ],
    )


@pytest.mark.parametrize(
    "wait",
    [
        lambda y: y.block_until_ready(),
        jax.block_until_ready,
        lambda y: jax.block_until_ready([y, y]),
        float,
        lambda y: y.item(),
        np.asarray,
        jax.device_get,
        str,
    ],
    ids=["method", "one", "several", "float", "item", "asarray", "device_get", "str"],
)
def test_a_rank_that_waits_for_its_devices_is_seen(
    records: Records, mesh: Mesh, wait: Callable[[jax.Array], object]
) -> None:
    """With several devices the call returns, and whoever needs the result waits."""
    _sum(mesh).block_until_ready()  # a late first collective ends in an error after 30 s
    records.world.barrier()
    before = len(records.ours)
    if records.world.is_primary:
        wait_for_devices = _await_device_wait(records, 1)
        assert wait_for_devices.detail == "float32[]"
        assert wait_for_devices.frame is not None
        assert wait_for_devices.frame.file == __file__
        program = _await_program(records, 1)
        assert (program.name, program.group) == ("jit__lambda", (0, 1))
        wait(_sum(mesh))
    else:
        wait(_sum(mesh))
        assert not any(each.is_open for each in records.ours[before:])


def _await_program(records: Records, rank: int) -> Operation:
    """Wait until `rank` waits for a program, and return it."""
    while True:
        for each in records.of(rank):
            if each.is_program and each.is_open and each.waited_s is not None:
                return each
        time.sleep(0.005)


def _await_device_wait(records: Records, rank: int) -> Operation:
    """Wait until `rank` waits for its own devices, and return that wait."""
    while True:
        for each in records.of(rank):
            if each.is_open and each.name == "block_until_ready":
                assert (each.kind, each.group) == ("wait", (rank,))
                return each
        time.sleep(0.005)


def test_what_is_ready_is_not_noted(records: Records, mesh: Mesh) -> None:
    """Reading numbers is cheap and stays so."""
    ready = [_sum(mesh), jnp.ones(3)]
    jax.block_until_ready(ready)
    before = records.ours
    for array in ready:
        array.block_until_ready()
        np.asarray(array)
        jax.device_get(array)
    assert float(ready[0]) == sum(range(mesh.size))
    assert ready[1].tolist() == [1, 1, 1]
    assert records.ours == before


def test_a_program_is_noted_with_its_processes_when_it_is_started(
    records: Records, mesh: Mesh
) -> None:
    """With the line, and which was the last; one of this process alone is not."""
    alone = Mesh(np.array(jax.local_devices()[:1]), ("x",))
    step = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
    short, long = _spread(mesh, np.ones(mesh.size)), _spread(mesh, np.ones(2 * mesh.size))
    step(short).block_until_ready()
    assert _started(records) == ["step(short).block_until_ready()"]
    sync_global_devices("noted itself")
    _sum(alone).block_until_ready()
    for _ in range(3):
        step(long).block_until_ready()
    assert _started(records) == [
        "step(short).block_until_ready()",
        "step(long).block_until_ready()",
    ]


def _programs(records: Records) -> list[tuple[str, int, str]]:
    """Return name, number and detail of the programs that this rank has started."""
    return [(each.name, each.sequence, each.detail) for each in records.ours if each.is_program]


def test_each_start_of_a_program_with_collectives_is_counted(records: Records, mesh: Mesh) -> None:
    """Not that of a program without any, nor of one on the devices of this process."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def total_of(x: jax.Array) -> jax.Array:
        return x.sum()

    step, values = jax.jit(total_of, out_shardings=everywhere), _spread(mesh, np.ones(mesh.size))
    alone = Mesh(np.array(jax.local_devices()), ("x",))
    for _ in range(3):
        step(values).block_until_ready()
        jax.block_until_ready(values + 1)
        jnp.sum(_spread(alone, np.ones(2))).block_until_ready()
    assert _programs(records) == [
        ("jit_total_of", number, "all_reduce f32[]") for number in (1, 2, 3)
    ]
    compiled = step.lower(values).compile()
    for _ in range(3):
        compiled(values).block_until_ready()
    assert [number for _, number, _ in _programs(records)] == [1, 2, 3, 4, 5, 6]


def test_a_program_that_fails_is_noted_as_failed(records: Records, mesh: Mesh) -> None:
    """Its error is the test's to see."""
    step = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
    values = _spread(mesh, np.ones(mesh.size))
    step(values).block_until_ready()
    values.delete()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        step(values)
    assert not [each for each in records.ours if each.is_open]


def test_while_a_program_calls_the_host_no_thread_waits_for_other_ranks(
    records: Records, mesh: Mesh
) -> None:
    """The rank may then be late itself, and not the others."""
    waited: list[bool] = []

    def look(_: np.ndarray) -> None:
        own = [each for each in records.ours if each.is_program and each.is_open]
        waited.extend(each.waited_s is not None for each in own)

    def shown(x: jax.Array) -> jax.Array:
        jax.debug.callback(look, x)
        return jax.lax.psum(x, "x")

    shape = PartitionSpec("x")
    step = jax.jit(jax.shard_map(shown, mesh=mesh, in_specs=shape, out_specs=shape))
    for _ in range(2):
        step(_spread(mesh, np.ones(mesh.size))).block_until_ready()
    jax.effects_barrier()
    assert waited
    assert not any(waited)
    assert len(_programs(records)) == 2


def _started(records: Records) -> list[str]:
    """Return the lines that have started programs on both processes, the last one last."""
    rank = records.world.rank
    entered = read_slots(slots_path(records.directory, rank), rank=rank).entered
    found = {}
    for (group, _, scope), last in entered.items():
        if group == (0, 1) and scope.kind == "program":
            file, _, line = scope.name.rpartition(":")
            found[linecache.getline(file, int(line)).strip()] = last
    return sorted(found, key=found.__getitem__)


def test_each_thread_has_its_own_operations(records: Records) -> None:
    """A thread in a barrier does not hide what another does."""
    passing = threading.Thread(target=_client().wait_at_barrier, args=("in a thread", TIMEOUT_MS))
    if records.world.is_primary:
        passing.start()
        assert records.await_open(0).thread == passing.native_id
        sync_global_devices("meanwhile")
        records.world.barrier()
    else:
        sync_global_devices("meanwhile")
        records.world.barrier()
        passing.start()
    passing.join()
    details = {each.detail for each in records.ours}
    assert details == {"in a thread", "meanwhile"}


def test_what_happens_to_a_rank_happens_before_it_enters(records: Records) -> None:
    """Faults listen; what they raise is the test's to see."""
    asked: list[tuple[str, str, int]] = []

    def refuse(name: str, kind: str, _source: object) -> None:
        asked.append((name, kind, len(records.ours)))
        raise ZeroDivisionError

    records.recorder.on_begin.append(refuse)
    with pytest.raises(ZeroDivisionError):
        sync_global_devices("never entered")
    records.recorder.on_begin.clear()
    sync_global_devices("entered")
    assert asked == [("sync_global_devices", "collective", 0)]
    assert [(each.detail, each.sequence) for each in records.ours] == [("entered", 1)]


def test_an_error_in_recording_is_no_error_of_the_test(
    records: Records, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the page gone, everything would still work."""
    monkeypatch.setattr(SlotPage, "begin", None)
    monkeypatch.setattr("pytest_multihost.core.rank.recorder.jax._shapes", None)
    sync_global_devices("all the same")
    assert process_allgather(np.int32(3)).tolist() == [3, 3]
    _client().wait_at_barrier("all the same", TIMEOUT_MS)
    assert float(_sum(mesh)) == sum(range(mesh.size))


def test_functions_are_what_they_were(world: World, shared_tmp_path: Path) -> None:
    """Same objects, signatures, sources and pickles; arguments are refused in the same words."""
    functions = [sync_global_devices, process_allgather, broadcast_one_to_all, assert_equal]
    before = [_looks(function) for function in functions]
    install(Recorder(SlotPage.create(shared_tmp_path / str(world.rank)), world.rank, world.size))
    assert [_looks(function) for function in functions] == before
    assert multihost_utils.sync_global_devices is sync_global_devices
    array = jnp.ones(3)
    assert pickle.loads(pickle.dumps(array)).tolist() == [1, 1, 1]  # noqa: S301 - our own
    assert isinstance(array, jax.Array)
    with pytest.raises(TypeError, match=re.escape("sync_global_devices() missing 1 required")):
        sync_global_devices()


def _looks(function: FunctionType) -> tuple[object, ...]:
    called = (inspect.signature(function), inspect.getsource(function))
    named = (function.__name__, function.__qualname__, function.__module__, function.__doc__)
    return *called, *named, function.__defaults__, pickle.dumps(function)


def test_traced_functions_are_traced(records: Records) -> None:
    """Inside jit, grad and vmap there are no values to wait for."""
    known = jnp.arange(3.0)

    def sum_of_squares(x: jax.Array) -> jax.Array:
        squares: jax.Array = jax.block_until_ready(x * known)
        return squares.sum()

    squares = jax.jit(sum_of_squares)
    assert squares(known) == 5
    assert jax.grad(squares)(known).tolist() == [0, 1, 2]
    assert jax.vmap(squares)(jnp.ones((2, 3))).tolist() == [3, 3]
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda x: x.item())(jnp.ones(()))
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.jit(process_allgather)(known)


def test_a_deleted_array_is_deleted(records: Records) -> None:
    """The error is jax's own."""
    array = jnp.ones(3)
    array.delete()
    with pytest.raises(RuntimeError, match="deleted or donated buffer"):
        array.block_until_ready()
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        array.tolist()
    with pytest.raises(RuntimeError, match="deleted or donated buffer"):
        jax.block_until_ready([array, array])


@pytest.mark.multihost(backend="none")
def test_starting_and_shutting_down_are_seen(records: Records) -> None:
    """They need all processes, and a test may do both itself."""
    address = f"127.0.0.1:{os.environ['MASTER_PORT']}"
    place = (records.world.size, records.world.rank)
    seen = _call_late(records, lambda: jax.distributed.initialize(address, *place), 1, 0)
    assert seen is None or (seen.name, seen.group) == ("jax.distributed.initialize", (0, 1))
    records.world.barrier()
    seen = _call_late(records, jax.distributed.shutdown, 1, 0)
    assert seen is None or (seen.name, seen.group) == ("jax.distributed.shutdown", (0, 1))


@pytest.mark.multihost(backend="none")
def test_initialize_finds_its_arguments_in_the_variables_of_a_rank(records: Records) -> None:
    """Without any argument, as under a launcher that jax knows."""
    jax.distributed.initialize()
    assert (jax.process_index(), jax.process_count()) == (records.world.rank, records.world.size)
    sync_global_devices("all are there")
    jax.distributed.shutdown()


@pytest.mark.multihost(backend="none")
def test_a_start_with_more_processes_than_ranks_says_both_numbers(records: Records) -> None:
    """Nobody else will come."""
    if records.world.is_primary:
        address = f"127.0.0.1:{os.environ['MASTER_PORT']}"
        start = threading.Thread(
            target=jax.distributed.initialize, args=(address, 5, 0), daemon=True
        )
        start.start()
        seen = records.await_open(0)
        assert seen.detail == "of 5 processes, but there are 2 ranks"


@pytest.mark.multihost(backend="none")
def test_a_world_of_its_own_is_not_taken_for_ours(records: Records) -> None:
    """Process 0 of a test's own small world says nothing about rank 0."""
    if records.world.rank == 1:
        address = f"127.0.0.1:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, num_processes=1, process_id=0)
        _client().wait_at_barrier("alone", TIMEOUT_MS)
        sync_global_devices("alone")
        jax.distributed.shutdown()
    else:
        sync_global_devices("alone")
    assert {each.kind for each in records.ours} <= {"wait"}
