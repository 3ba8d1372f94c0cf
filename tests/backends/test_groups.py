"""The process group is what the marker asks for, and what a rank finds around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from pytest_multihost import World

RunWorlds = Callable[..., Any]

LONG_S = 4000
"""Longer than any limit that a runtime has by default."""

FOREIGN: Mapping[str, str] = {
    "RANK": "7",
    "WORLD_SIZE": "9",
    "LOCAL_RANK": "7",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "outer",
    "OMPI_COMM_WORLD_RANK": "7",
    "PMI_RANK": "7",
    "SLURM_PROCID": "7",
    "SLURM_NTASKS": "9",
    "JAX_PROCESS_ID": "7",
    "JAX_COORDINATOR_ADDRESS": "192.0.2.1:1",
    "https_proxy": "http://192.0.2.1:1",
}
"""What a launcher around pytest may leave behind; 192.0.2.1 is nobody's address."""


def _order_of_ranks() -> list[int]:
    """Return every rank's number in the order in which torch's collectives put them."""
    parts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor([dist.get_rank()]))
    return [int(part) for part in parts]


@pytest.mark.multihost(ranks=3, backend="gloo", timeout=60)
def test_gloo_ranks_form_one_group_in_order(world: World) -> None:
    """Size, rank, members and order are the world's, and a collective reaches all of them."""
    total = torch.tensor([2**world.rank])
    dist.all_reduce(total)

    assert (dist.get_backend(), dist.get_world_size()) == ("gloo", world.size)
    assert dist.get_rank() == world.rank
    assert dist.get_process_group_ranks(None) == _order_of_ranks() == [0, 1, 2]
    assert total.item() == 0b111
    assert world.devices == (torch.device("cpu"),)


@pytest.mark.multihost(ranks=3, backend="jax", local_devices=2, timeout=60)
def test_jax_ranks_form_one_group_in_order(world: World) -> None:
    """Every rank has its own two devices among all six, and a collective reaches all of them."""
    assert (jax.process_count(), jax.process_index()) == (world.size, world.rank)
    assert jax.device_count() == 2 * world.size
    assert [device.process_index for device in jax.devices()] == [0, 0, 1, 1, 2, 2]
    assert world.devices == tuple(jax.local_devices())
    assert {device.process_index for device in jax.local_devices()} == {world.rank}

    order = multihost_utils.process_allgather(jnp.array(world.rank))
    assert order.tolist() == [0, 1, 2]


@pytest.mark.multihost(ranks=3, backend="jax", local_devices=2, timeout=60)
def test_a_jitted_sum_goes_over_all_devices_of_all_ranks() -> None:
    """A collective that the compiler makes is right too."""
    mesh = jax.make_mesh((6,), ("device",))
    sharding = NamedSharding(mesh, PartitionSpec("device"))
    bits = 2.0 ** np.arange(6)
    numbers = jax.make_array_from_callback((6,), sharding, lambda index: bits[index])

    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(numbers)

    assert float(total) == 0b111111


@pytest.mark.multihost(ranks=3, backend="none", timeout=60)
@pytest.mark.claim("test code that calls `init_process_group` itself")
def test_code_that_calls_init_process_group_itself_finds_its_world(world: World) -> None:
    """As under torchrun, the environment says it all."""
    assert not dist.is_initialized()

    dist.init_process_group("gloo")

    assert (dist.get_rank(), dist.get_world_size()) == (world.rank, world.size)
    assert _order_of_ranks() == [0, 1, 2]


@pytest.mark.multihost(ranks=3, backend="none", timeout=60)
def test_code_that_calls_jax_distributed_itself_finds_its_world(world: World) -> None:
    """The address that the environment names is free for jax's coordination service."""
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=int(os.environ["WORLD_SIZE"]),
        process_id=int(os.environ["RANK"]),
        cluster_detection_method="deactivate",
    )

    assert (jax.process_index(), jax.process_count()) == (world.rank, world.size)
    assert multihost_utils.process_allgather(jnp.array(world.rank)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.multihost(ranks=2, backend="none", timeout=60)
def test_each_world_meets_at_a_place_of_its_own(attempt: int, world: World) -> None:
    """The port is free again when the next world comes, whoever held it before."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    assert _order_of_ranks() == [0, 1]
    assert len(set(world.gather(os.environ["MASTER_PORT"]))) == 1


LONG_TESTS = f"""
import os
from datetime import timedelta

import jax.numpy as jnp
import pytest
import torch
import torch.distributed as dist

@pytest.mark.multihost(ranks=2, backend="gloo", timeout={LONG_S})
def test_torch(world):
    mesh = dist.init_device_mesh("cpu", (world.size,))
    groups = [dist.distributed_c10d._get_default_group(), dist.new_group(), mesh.get_group()]
    limits = [each._get_backend(torch.device("cpu")).options._timeout for each in groups]
    assert min(limits) > timedelta(seconds={LONG_S})

@pytest.mark.multihost(ranks=2, backend="gloo", timeout={LONG_S})
def test_store(world):
    assert dist.distributed_c10d._get_default_store().timeout > timedelta(seconds={LONG_S})

@pytest.mark.multihost(ranks=2, backend="jax", timeout={LONG_S})
def test_xla(world):
    limits = dict(flag.split("=") for flag in os.environ["XLA_FLAGS"].split())
    assert int(limits["--xla_cpu_collective_timeout_seconds"]) > {LONG_S}
    assert int(limits["--xla_cpu_collective_call_terminate_timeout_seconds"]) > {LONG_S}
    assert jnp.ones(3).sum() == 3  # XLA ends a process that has a flag it does not know
"""


@pytest.mark.program(LONG_TESTS)
def test_no_runtime_gives_up_before_the_tests_own_deadline(worlds) -> None:
    """Not a group of torch's, first or later, not its store, and not a collective of XLA's."""
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.multihost(ranks=2, backend="gloo", timeout=60)
def test_a_rank_computes_with_one_thread() -> None:
    """Else as many pools as ranks would fight for the machine."""
    before = len(os.listdir("/proc/self/task"))
    square = torch.ones(512, 512)
    assert (square @ square).sum() == 512**3

    assert torch.get_num_threads() == 1
    assert len(os.listdir("/proc/self/task")) == before


@pytest.mark.multihost(ranks=2, backend="none", timeout=60)
def test_a_rank_finds_its_own_world_in_its_environment(world: World) -> None:
    """All that torchrun sets, with the values of this world."""
    ranks = {os.environ[name] for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
    sizes = {os.environ[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")}
    assert (ranks, sizes) == ({str(world.rank)}, {str(world.size)})
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"


SHOW_ENVIRONMENT = """
import json, os, pathlib, pytest

@pytest.mark.multihost(ranks=2, timeout=60)
def test_it(world):
    pathlib.Path(f"environment-{world.rank}").write_text(json.dumps(dict(os.environ)))
"""


@pytest.mark.parametrize("launch", ["fork", "server", "spawn"])
def test_a_rank_inherits_no_other_world(
    run_worlds: RunWorlds, monkeypatch: pytest.MonkeyPatch, launch: str
) -> None:
    """What an outer launcher has left behind is gone or overwritten in every rank."""
    for name, value in FOREIGN.items():
        monkeypatch.setenv(name, value)

    worlds = run_worlds(SHOW_ENVIRONMENT, "--multihost-launch", launch)

    assert worlds.verdicts["test_it"]["launch"] == launch
    for rank in range(2):
        environment = json.loads((worlds.path / f"environment-{rank}").read_text())
        assert [name for name in FOREIGN if environment.get(name) == FOREIGN[name]] == []
        assert environment["RANK"] == str(rank)


THREADS = """
import pathlib, pytest, torch

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=60)
def test_it(world):
    pathlib.Path(f"threads-{world.rank}").write_text(str(torch.get_num_threads()))
"""


@pytest.mark.parametrize("launch", ["fork", "spawn"])
def test_a_number_of_threads_that_the_user_has_set_stays(
    run_worlds: RunWorlds, monkeypatch: pytest.MonkeyPatch, launch: str
) -> None:
    """One thread is for those who have not said otherwise; else it is as without us."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    program = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    without_us = subprocess.run(program, capture_output=True, check=True, text=True, timeout=60)

    path = run_worlds(THREADS, "--multihost-launch", launch).path

    threads = [(path / f"threads-{rank}").read_text() for rank in range(2)]
    assert threads == [without_us.stdout.strip()] * 2


DEVICES = """
import jax, pytest

@pytest.mark.multihost(ranks=2, backend="jax", local_devices=2, timeout=60)
def test_it(world):
    assert (jax.local_device_count(), jax.device_count()) == (2, 4)
    assert jax.default_backend() == "cpu"
"""


@pytest.mark.parametrize("launch", ["fork", "spawn"])
def test_the_marker_decides_how_many_devices_a_rank_has(
    run_worlds: RunWorlds, monkeypatch: pytest.MonkeyPatch, launch: str
) -> None:
    """XLA_FLAGS that are set for the tests of one process do not get in the way."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=7")

    run_worlds(DEVICES, "--multihost-launch", launch).run.assert_outcomes(passed=1)
