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

def everywhere(*axes):
    return NamedSharding(jax.sharding.Mesh(jax.devices(), "x"), PartitionSpec(*axes))

@pytest.mark.multihost(ranks=2, backend="jax", timeout=60)
def test_input(world, path):
    jax.jit(lambda x: 2 * x, out_shardings=everywhere())(rate(path))

@pytest.mark.multihost(ranks=2, backend="jax", timeout=60)
def test_own_array(world, path):
    step = jax.jit(lambda x: 2 * x, out_shardings=everywhere())
    step(jax.numpy.full(2, rate(path)))

@pytest.mark.multihost(ranks=2, backend="jax", timeout=60)
def test_own_rows(world, path):
    step = jax.jit(lambda x: 2 * x, out_shardings=everywhere("x"))
    mine = np.full((len(jax.local_devices()), 2), rate(path))
    step(jax.make_array_from_process_local_data(everywhere("x"), mine))

@pytest.mark.multihost(ranks=2, backend="jax", timeout=60)
def test_local(world, path):
    jax.jit(lambda x: 2 * x)(rate(path))

@pytest.mark.multihost(ranks=2, backend="jax", timeout=60)
def test_put(world, path):
    jax.device_put(np.float32(rate(path)), everywhere())
"""


def wrong(worlds, test: str) -> list[str]:
    """Return what the sweep of a test has found wrong in values."""
    sweep = read_sweep(worlds.directory(test) / "sweep.json")
    assert sweep.runs, sweep.reason
    found = [each.witness for each in sweep.weaknesses]
    return [each.summary for each in found if each.wrong_by == "values"]


@pytest.mark.program(RATE, "--multihost-sweep=fails", "-k", "each or agreed")
def test_arrays_that_claim_to_be_replicated_and_differ_are_wrong(worlds) -> None:
    """The test states nothing; the report names the line that made the array, and both values."""
    found = wrong(worlds, "test_each")
    assert found
    assert all("ranks differ in 'jax array of test_worlds_" in each for each in found)
    assert all("has float32 (2,) [0.1" in each for each in found)
    assert all("has float32 (2,) [0.00" in each for each in found)
    assert wrong(worlds, "test_agreed") == []


@pytest.mark.worlds
@pytest.mark.parametrize(("test", "value"), [("test_input", "()"), ("test_own_array", "(2,)")])
@pytest.mark.program(RATE, "--multihost-sweep=fails")
def test_what_processes_give_to_a_function_of_all_is_compared(worlds, test, value) -> None:
    """A number or an array of this process that jax takes for everybody's."""
    found = wrong(worlds, test)
    assert found
    assert all("ranks differ in 'input of a jax program at test_worlds_" in each for each in found)
    assert all(f"float32 {value} [0.1" in each for each in found)


@pytest.mark.worlds
@pytest.mark.parametrize("test", ["test_own_rows", "test_local", "test_put"])
@pytest.mark.program(RATE, "--multihost-sweep=fails")
def test_what_processes_need_not_have_alike_is_not_compared(worlds, test) -> None:
    """Rows of its own, and what runs on its own devices; jax itself compares what is put."""
    assert wrong(worlds, test) == []
