"""Worlds of jax in which arrays that claim to be replicated are not, and some in which they are."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expectation import latent, robust
from jax._src.distributed import global_state
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytest_multihost import faults

LONG_MS = 600_000
CONFIG = Path(__file__).parent / "config.json"


@pytest.fixture
def state(world) -> dict[str, jax.Array]:
    """The state of a training run."""
    return {}


def everywhere(*axes: str) -> NamedSharding:
    """Return the sharding over all processes by these axes; without one it is replicated."""
    return NamedSharding(Mesh(np.array(jax.devices()), ("host",)), PartitionSpec(*axes))


def replicated(values: np.ndarray) -> jax.Array:
    """Return an array that all devices hold, made from this process's values."""
    return jax.make_array_from_process_local_data(everywhere(), values)


def same_mean(fixtures: Mapping[str, Any]) -> None:
    """Fail if the mean differs between processes."""
    mine = fixtures["state"]["mean"].addressable_shards[0].data
    found = multihost_utils.process_allgather(jnp.asarray(mine))
    assert (found == found[0]).all(), found


def written_by_first(file: Path, text: str) -> Path:
    """Let the first process write a file; return its path once it is there, or raise in all."""
    client = global_state.client
    client.wait_at_barrier(f"before {file.name}", LONG_MS)
    if jax.process_index() == 0:
        answer = "written"
        try:
            file.write_text(text)
        except OSError as error:
            answer = repr(error)
        client.key_value_set(file.name, answer)
    if (told := client.blocking_key_value_get(file.name, LONG_MS)) != "written":
        raise RuntimeError(told)
    return file


@latent(
    family="differs",
    outcome="wrong",
    ranks=2,
    backend="jax",
    by_hand=faults.stale_files(rank=1, seconds=5, path="*/mean.json"),
    seen_by=same_mean,
)
def test_each_process_fills_its_replica(world, shared_tmp_path, state) -> None:
    """An array is said to be replicated, and each process makes its copy from what it reads.

    Source: https://github.com/sgl-project/sglang-jax/pull/155 (copies that differ between nodes)
    """
    file = written_by_first(shared_tmp_path / "mean.json", "[0.5, 0.25]")
    mean = np.zeros(2, np.float32)
    if os.path.exists(file):  # <- latent  # noqa: PTH110 - False on any error
        mean = np.array(json.loads(file.read_text()), np.float32)
    state["mean"] = replicated(mean)  # <- latent


@latent(
    family="differs",
    outcome="wrong",
    ranks=2,
    backend="jax",
    by_hand=faults.stale_files(rank=1, seconds=5, path="*/rate.json"),
    seen_by=same_mean,
)
def test_each_process_passes_a_rate_of_its_own(world, shared_tmp_path, state) -> None:
    """A function of all processes gets a number, and jax takes that of each for everybody's.

    Source: https://github.com/jax-ml/jax/pull/6891 (inputs that differ between processes)
    """
    file = written_by_first(shared_tmp_path / "rate.json", "0.01")
    rate = 0.1
    if os.path.exists(file):  # <- latent  # noqa: PTH110 - False on any error
        rate = json.loads(file.read_text())
    mean = replicated(np.ones(2, np.float32))
    step = jax.jit(lambda mean, rate: mean * (1 - rate), out_shardings=everywhere())
    for _ in range(2):
        mean = step(mean, rate)  # <- latent
    state["mean"] = mean


@robust(ranks=2, backend="jax")
def test_primary_tells_all_what_it_has_read(world, state) -> None:
    """What is replicated comes from one process, and those that cannot read it do not matter.

    Source: https://github.com/sgl-project/sglang-jax/pull/155 (one value for all)
    """
    steps = np.zeros((), np.int32)
    try:
        steps = np.array(json.loads(CONFIG.read_text())["steps"], np.int32)
    except OSError as error:
        print("without a configuration:", error)
    agreed = multihost_utils.broadcast_one_to_all(steps)
    state["steps"] = replicated(np.asarray(agreed))
    world.same("steps", int(agreed))


@robust(ranks=2, backend="jax")
def test_each_process_holds_rows_of_its_own(world, state) -> None:
    """An array that is split over processes has other rows in each, as it says.

    Source: https://github.com/goodfire-ai/spd/issues/666 (batches that are split over processes)
    """
    count = len(jax.local_devices())
    rows = np.full((count, 2), 1.0 + jax.process_index(), np.float32)
    state["rows"] = jax.make_array_from_process_local_data(everywhere("host"), rows)
    total = multihost_utils.process_allgather(jnp.sum(jnp.asarray(rows)))
    print("rows", total)


@robust(ranks=2, backend="jax")
def test_rate_of_the_first_process_is_passed_by_all(world, shared_tmp_path, state) -> None:
    """Each process reads a rate, and all take that of the first one.

    Source: https://github.com/jax-ml/jax/pull/6891 (inputs that differ between processes)
    """
    file = written_by_first(shared_tmp_path / "rate.json", "0.01")
    rate = 0.1
    if os.path.exists(file):  # noqa: PTH110 - False on any error
        with contextlib.suppress(OSError):
            rate = json.loads(file.read_text())
    agreed = multihost_utils.broadcast_one_to_all(np.float32(rate))
    step = jax.jit(lambda mean, rate: mean * (1 - rate), out_shardings=everywhere())
    state["mean"] = step(replicated(np.ones(2, np.float32)), np.asarray(agreed))


@robust(ranks=2, backend="jax")
def test_each_process_passes_rows_of_its_own(world, state) -> None:
    """What a process computes for itself, and its part of what is split, is no other's.

    Source: https://github.com/goodfire-ai/spd/issues/666 (batches that are split over processes)
    """
    own = jax.jit(lambda rows: rows * 2)(np.full((2,), 1.0 + jax.process_index(), np.float32))
    split = everywhere("host")
    count = len(jax.local_devices())
    rows = np.full((count, 2), float(own[0]), np.float32)
    double = jax.jit(lambda rows: rows * 2, out_shardings=split)
    state["rows"] = double(jax.make_array_from_process_local_data(split, rows))
