from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from packaging.requirements import Requirement

from pytest_multihost import World, at, faults
from pytest_multihost.fixes.replicate import (
    FIX,
    RanksDisagreeError,
    RanksMissingError,
    odd_ones,
    replicate,
)

pytestmark = pytest.mark.multihost(backend="jax", timeout=60)

MIB = 1 << 20
SIZE = 16 * MIB
AMPLE_S = 50.0

Put = Callable[[Any, NamedSharding], Any]


@pytest.fixture
def everywhere(world: World) -> NamedSharding:
    """Each device has the whole value."""
    return NamedSharding(jax.make_mesh((jax.device_count(),), ("x",)), PartitionSpec())


def _weights() -> np.ndarray:
    return np.arange(SIZE // 4, dtype=np.float32)


def _check(placed: jax.Array, wanted: np.ndarray, sharding: NamedSharding) -> None:
    """Compare type, place and what each local device holds, bit by bit."""
    assert placed.dtype == wanted.dtype
    assert placed.sharding == sharding
    assert placed.addressable_shards
    for shard in placed.addressable_shards:
        assert _bytes(np.asarray(shard.data)) == _bytes(wanted[shard.index])


def _bytes(array: np.ndarray) -> memoryview:
    """Return its memory: a copy would be one more where memory is scarce."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _status(name: str) -> int:
    """Return a number of bytes that the kernel tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _peak_growth(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and by how many times SIZE memory grew while it ran."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use
    before = _status("VmRSS")
    result = jax.block_until_ready(call())
    return result, (_status("VmHWM") - before) / SIZE


@pytest.mark.multihost(ranks=[2, 4])
@pytest.mark.claim("apply the fix for a hang that others have published")
def test_memory_grows_with_the_number_of_processes_only_without_the_fix(
    world: World, everywhere: NamedSharding
) -> None:
    """The hidden comparison needs twice the value of every process; digests need nothing."""
    _compare_memory(world, everywhere)


@pytest.mark.runtimes
@pytest.mark.multihost(ranks=8)
def test_memory_grows_among_eight_processes_as_among_four(
    world: World, everywhere: NamedSharding
) -> None:
    """It has no limit."""
    _compare_memory(world, everywhere)


def _compare_memory(world: World, everywhere: NamedSharding) -> None:
    weights = _weights()
    jax.device_put(np.ones(3), everywhere)  # so that only the data counts below

    placed, with_fix = _peak_growth(lambda: replicate(weights, everywhere, timeout_s=AMPLE_S))
    compared, without = _peak_growth(lambda: jax.device_put(weights, everywhere))

    _check(placed, weights, everywhere)
    _check(compared, weights, everywhere)
    assert with_fix < 2
    assert without >= 2 * world.size


FIXED = pytest.param(partial(replicate, timeout_s=AMPLE_S), id="fixed")


def _hangs(**expected: object) -> object:
    """Return the unfixed side of a test, with what the plugin must say of it."""
    return pytest.param(
        jax.device_put, id="unfixed", marks=pytest.mark.multihost_expect(**expected)
    )


@pytest.mark.runtimes
@pytest.mark.multihost(
    ranks=4,
    faults=[faults.memory_pressure(rank=1, headroom_mb=110, at=at.sync_point("weights are read"))],
)
@pytest.mark.parametrize(
    "put",
    [_hangs(kind="raised", culprits=[1], waiting=[0, 2, 3], match="MemoryError"), FIXED],
)
def test_a_rank_with_room_for_six_copies_dies_of_eight(
    world: World, everywhere: NamedSharding, put: Put
) -> None:
    """Only that rank fails, after the gathering: the others have gone on to the next step."""
    weights = _weights()
    jax.device_put(np.ones(3), everywhere)
    world.sync_point("weights are read")

    placed = put(weights, everywhere)

    _check(placed, weights, everywhere)
    world.barrier("the next step")


@pytest.mark.multihost(
    ranks=4,
    faults=[faults.memory_pressure(rank=1, headroom_mb=40, at=at.sync_point("weights are read"))],
)
@pytest.mark.parametrize("put", [_hangs(culprits=[1]), FIXED])
def test_a_rank_with_room_for_two_copies_dies_of_four(
    world: World, everywhere: NamedSharding, put: Put
) -> None:
    """It fails in the gathering itself, by an error or, of jaxlib's own accord, an abort."""
    weights = _weights()
    jax.device_put(np.ones(3), everywhere)
    world.sync_point("weights are read")

    placed = put(weights, everywhere)

    _check(placed, weights, everywhere)
    world.barrier("the next step")


@pytest.mark.multihost(ranks=2)
@pytest.mark.parametrize(
    "put",
    [
        _hangs(kind="finished", culprits=[1], waiting=[0], match="assert_equal"),
        pytest.param(partial(replicate, check=None), id="fixed"),
    ],
)
@pytest.mark.parametrize("axes", [(), ("x",)], ids=["replicated", "split"])
def test_one_rank_alone_can_place_a_value(
    world: World, everywhere: NamedSharding, axes: tuple[str, ...], put: Put
) -> None:
    """What was a collective no longer is.

    The first collective is made by all, as in most programs: one that meets nobody in its first
    ends by itself, after gloo's 30 s for connecting.
    """
    jax.device_put(np.ones(3), everywhere)
    sharding = NamedSharding(everywhere.mesh, PartitionSpec(*axes))
    weights = np.arange(8, dtype=np.float32)
    if world.is_primary:
        _check(put(weights, sharding), weights, sharding)


@pytest.mark.multihost(ranks=3)
def test_a_comparison_names_who_did_not_come(world: World, everywhere: NamedSharding) -> None:
    """It ends at its own time, where the collective would wait for ever."""
    if world.rank != 1:
        with pytest.raises(
            RanksMissingError, match=r"Did not come within 0.2 s: rank 1\."
        ) as error:
            replicate(np.ones(3), everywhere, timeout_s=0.2)
        assert error.value.ranks == (1,)
    world.barrier("the others gave up")


@pytest.mark.multihost(ranks=3)
@pytest.mark.parametrize(
    ("odd_value", "where"),
    [
        (np.array([0, 1, -0.0], np.float32), "['step'][1]"),
        (np.array([0, 1], np.float32), "['step'][1]"),
        (np.array([0, 1, 0], np.int32), "['step'][1]"),
        (None, "['step'][1]"),
    ],
    ids=["bits", "shape", "type", "nothing"],
)
def test_ranks_that_disagree_are_named_in_every_rank(
    world: World, everywhere: NamedSharding, odd_value: object, where: str
) -> None:
    """Also where the numbers are equal and the bits are not; and where in the tree it is."""
    usual = np.array([0, 1, 0], np.float32)
    ours = odd_value if world.rank == 2 else usual
    with pytest.raises(RanksDisagreeError, match=r"Out of line: rank 2\. In: ") as error:
        replicate({"step": [usual, ours]}, everywhere, timeout_s=AMPLE_S)
    assert error.value.ranks == (2,)
    assert error.value.leaves == (where,)


@pytest.mark.multihost(ranks=2)
def test_without_a_comparison_a_disagreement_goes_unnoticed(
    world: World, everywhere: NamedSharding
) -> None:
    """As published, the fix gives each rank an own value in what should be one array."""
    own = np.full(3, world.rank, np.float32)
    _check(replicate(own, everywhere, check=None), own, everywhere)


def _tree() -> dict[str, Any]:
    return {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "half": np.arange(4, dtype=jnp.bfloat16),
        "nothing": np.zeros((0, 3), np.int8),
        "step": np.int32(7),
        "bits": np.array([np.nan, -0.0, np.inf], np.float32),
        "local": jnp.arange(5),
    }


@pytest.mark.multihost(ranks=2, local_devices=2)
def test_every_leaf_keeps_type_shape_and_bits(world: World, everywhere: NamedSharding) -> None:
    """Arrays with gaps, of bfloat16, of no element, of no dimension, with NaN, of one device."""
    placed = replicate(_tree(), everywhere, timeout_s=AMPLE_S)
    for name, leaf in _tree().items():
        _check(placed[name], np.asarray(leaf), everywhere)
    doubled = jax.jit(lambda x: (2 * x).sum())(placed["weights"])
    assert float(doubled) == 30


@pytest.mark.multihost(ranks=2)
def test_what_is_no_array_passes_through(world: World, everywhere: NamedSharding) -> None:
    """The same objects, even if they are others in each rank; None stays None."""
    mine = object()
    tree = {"rate": 0.1, "name": f"of rank {world.rank}", "apply": len, "none": None, "own": mine}
    placed = replicate({**tree, "x": np.ones(2)}, everywhere, timeout_s=AMPLE_S)
    assert isinstance(placed.pop("x"), jax.Array)
    assert placed == tree


@pytest.mark.multihost(ranks=2)
def test_what_is_in_place_stays_there(world: World, everywhere: NamedSharding) -> None:
    """An array that already has the sharding is not copied; one replicated otherwise is."""
    first = replicate(np.arange(4), everywhere, timeout_s=AMPLE_S)
    assert replicate(first, everywhere, timeout_s=AMPLE_S) is first
    split = NamedSharding(everywhere.mesh, PartitionSpec("x"))
    _check(replicate(first, split, timeout_s=AMPLE_S), np.arange(4, dtype=np.int32), split)


@pytest.mark.multihost(ranks=2)
def test_an_array_that_would_have_to_move_is_refused(
    world: World, everywhere: NamedSharding
) -> None:
    """That takes a collective, which is not to be hidden."""
    split = NamedSharding(everywhere.mesh, PartitionSpec("x"))
    parts = jax.make_array_from_callback((2,), split, lambda index: np.zeros(2)[index])
    with pytest.raises(ValueError, match=r"cannot move \['x'\] between processes"):
        replicate({"x": parts}, everywhere, timeout_s=AMPLE_S)


@pytest.mark.multihost(ranks=2)
def test_random_keys_are_placed_as_keys(world: World, everywhere: NamedSharding) -> None:
    """They draw the same numbers in every rank."""
    placed = replicate(jax.random.key(5), everywhere, timeout_s=AMPLE_S)
    drawn = jax.random.uniform(placed, (3,)).addressable_data(0)
    assert drawn.tolist() == jax.random.uniform(jax.random.key(5), (3,)).tolist()


@pytest.mark.multihost(ranks=2)
def test_many_calls_leave_few_keys(world: World, everywhere: NamedSharding) -> None:
    """What was told in a call is removed in the next."""
    for number in range(20):
        replicate(np.full(2, number), everywhere, timeout_s=AMPLE_S)
    world.barrier("all have called")
    client = jax._src.distributed.global_state.client
    told = [key for key, _ in client.key_value_dir_get("replicate/") if "/tree/" in key]
    assert len(told) == world.size


@pytest.mark.multihost(ranks=3)
def test_a_nan_fails_the_hidden_comparison_and_not_the_digests(
    world: World, everywhere: NamedSharding
) -> None:
    """It is not equal to itself, but has the same bits."""
    value = np.array([np.nan], np.float32)
    with pytest.raises(AssertionError, match="not the same on each process"):
        jax.device_put(value, everywhere)
    _check(replicate(value, everywhere, timeout_s=AMPLE_S), value, everywhere)


@pytest.mark.no_multihost
@pytest.mark.parametrize(
    ("values", "odd"),
    [("aab", (2,)), ("abaa", (1,)), ("ab", (0, 1)), ("aabb", (0, 1, 2, 3)), ("abcaa", (1, 2))],
)
def test_the_odd_ones_are_the_minority(values: str, odd: tuple[int, ...]) -> None:
    """Without a majority nobody can be told from the rest."""
    assert odd_ones(dict(enumerate(values))) == odd


@pytest.mark.no_multihost
@pytest.mark.parametrize(
    ("version", "is_affected"), [("0.7.2", False), ("0.8.0", True), (jax.__version__, True)]
)
def test_the_record_says_who_is_affected(version: str, is_affected: bool) -> None:
    """Before jax 0.8, the comparison was a broadcast."""
    (affected,) = map(Requirement, FIX.affected)
    assert affected.specifier.contains(version) is is_affected
