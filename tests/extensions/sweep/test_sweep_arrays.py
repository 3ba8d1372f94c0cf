"""Sweeps of tests of jax: arrays that claim to be replicated, and are not."""

from __future__ import annotations

import pytest
from runtimes import needs

from pytest_multihost.extensions.sweep.record import read_sweep

pytestmark = needs("jax")

# Each process reads the learning rate itself, and falls back to another one.
RATE = """
import jax, numpy as np, pytest
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

def rate(path):
    try:
        return float(path.read_text())
    except OSError:
        return 0.1

def replicated(value):
    mesh = jax.sharding.Mesh(jax.devices(), "x")
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.make_array_from_callback((2,), everywhere, lambda i: np.full(2, value)[i])

@pytest.fixture
def path(world, shared_tmp_path):
    (shared_tmp_path / f"{world.rank}.txt").write_text("0.01")
    return shared_tmp_path / f"{world.rank}.txt"

@pytest.mark.multihost(ranks=2, backend="jax", timeout=60)
def test_each(world, path):
    replicated(rate(path))

@pytest.mark.multihost(ranks=2, backend="jax", timeout=60)
def test_agreed(world, path):
    replicated(multihost_utils.broadcast_one_to_all(np.float32(rate(path))))
"""


@pytest.mark.program(RATE, "--multihost-sweep=fails")
def test_arrays_that_claim_to_be_replicated_and_differ_are_wrong(worlds) -> None:
    """The test states nothing; the report names the line that made the array, and both values."""
    result = read_sweep(worlds.directory("test_each") / "sweep.json")
    found = [each.witness for each in result.weaknesses if each.witness.wrong_by == "values"]
    assert found
    assert all("ranks differ in 'jax array of test_worlds_" in each.summary for each in found)
    assert all("has float32 (2,) [0.1" in each.summary for each in found)
    assert all("has float32 (2,) [0.00" in each.summary for each in found)
    agreed = read_sweep(worlds.directory("test_agreed") / "sweep.json").weaknesses
    assert [each for each in agreed if each.witness.wrong_by] == []
