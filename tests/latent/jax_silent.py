"""Worlds of jax in which arrays that claim to be replicated are not, and some in which they are."""

from __future__ import annotations

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


def replicated(values: np.ndarray) -> jax.Array:
    """Return an array that all devices hold, made from this process's values."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("host",)), PartitionSpec())
    return jax.make_array_from_process_local_data(sharding, values)


def same_mean(fixtures: Mapping[str, Any]) -> None:
    """Fail if the mean differs between processes."""
    mine = fixtures["state"]["mean"].addressable_shards[0].data
    found = multihost_utils.process_allgather(jnp.asarray(mine))
    assert (found == found[0]).all(), found


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
    file = shared_tmp_path / "mean.json"
    client = global_state.client
    client.wait_at_barrier("started", LONG_MS)
    if jax.process_index() == 0:
        answer = "written"
        try:
            file.write_text("[0.5, 0.25]")
        except OSError as error:
            answer = repr(error)
        client.key_value_set("mean", answer)
    if (told := client.blocking_key_value_get("mean", LONG_MS)) != "written":
        raise RuntimeError(told)
    mean = np.zeros(2, np.float32)
    if os.path.exists(file):  # <- latent  # noqa: PTH110 - False on any error
        mean = np.array(json.loads(file.read_text()), np.float32)
    state["mean"] = replicated(mean)  # <- latent


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
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("host",)), PartitionSpec("host"))
    count = len(jax.local_devices())
    rows = np.full((count, 2), 1.0 + jax.process_index(), np.float32)
    state["rows"] = jax.make_array_from_process_local_data(sharding, rows)
    total = multihost_utils.process_allgather(jnp.sum(jnp.asarray(rows)))
    print("rows", total)
