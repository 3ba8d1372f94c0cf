"""A rank's environment: nothing that names another world, and nothing taken that is the user's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_multihost import Role
from pytest_multihost.core.launch import LAUNCHERS, Launcher
from pytest_multihost.core.rank.environment import (
    foreign_variables,
    rank_variables,
    thread_variables,
)
from pytest_multihost.testing import RankSpec, make_spec, place_roles

SPEC = RankSpec(
    world=make_spec(4), rank=2, directory="/out", scratch="/scratch", ports=(4711, 4712)
)


@pytest.mark.parametrize(
    "name",
    [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME"),
        *("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
        *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID"),
        *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST", "SLURM_JOB_NUM_NODES"),
        *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
        *("http_proxy", "HTTPS_PROXY", "All_Proxy", "no_proxy", "grpc_proxy"),
        *("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"),
    ],
)
def test_what_names_another_world_goes(name: str) -> None:
    """An outer launcher's rank is not ours, and a proxy can hang a start-up."""
    assert foreign_variables({name: "1"}) == [name]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_a_number_that_a_launcher_gives_is_not_inherited(launcher: Launcher) -> None:
    """Of each that is known; what users set by hand they mean for the ranks, too."""
    names = [launcher.rank, launcher.size]
    assert foreign_variables(dict.fromkeys(names, "1")) == ([] if launcher.is_by_hand else names)


def test_proxies_can_be_kept() -> None:
    """A script may load its data through them; what names another world goes all the same."""
    assert foreign_variables({"https_proxy": "", "RANK": "1"}, keeps_proxies=True) == ["RANK"]


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LANG", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "XLA_FLAGS"),
        *("JAX_PLATFORMS", "JAX_ENABLE_X64", "TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG"),
        *("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_TMPDIR"),
        *("MY_RANK", "RANKING", "WORLD_SIZE_LIMIT", "MASTER_KEY", "MY_HTTP_PROXY"),
        *("COVERAGE_PROCESS_START", "PYTEST_ADDOPTS", "PYTHONPATH"),
    ],
)
def test_what_is_the_users_stays(name: str) -> None:
    """Also where it only looks like a name of a launcher's."""
    assert foreign_variables({name: "1"}) == []


def test_a_rank_finds_what_torchrun_would_have_set() -> None:
    """Code that initialises itself from the environment joins this world, at its own place."""
    variables = rank_variables(SPEC, {})
    expected = {
        "RANK": "2",
        "LOCAL_RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "PYTEST_MULTIHOST_RANK": "2",
        "PYTEST_MULTIHOST_WORLD_SIZE": "4",
    }
    assert variables.items() >= expected.items()


def test_every_value_is_a_string() -> None:
    """os.environ takes nothing else."""
    assert all(isinstance(value, str) for value in rank_variables(SPEC, {}).values())


def test_what_is_set_would_be_foreign_elsewhere() -> None:
    """A world within a world must not inherit the outer one: names to add are names to drop."""
    ours = {"GLOO_SOCKET_IFNAME", "PYTEST_MULTIHOST_RANK", "PYTEST_MULTIHOST_WORLD_SIZE"}
    variables = rank_variables(SPEC, dict.fromkeys(thread_variables({}), "1"))
    assert set(variables) - set(foreign_variables(variables)) == ours


def test_native_libraries_get_one_thread_each() -> None:
    """Four ranks with a pool of a thread per core would starve each other."""
    assert thread_variables({}) == {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def test_a_limit_of_the_users_is_kept() -> None:
    """An empty one is none."""
    inherited = {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": ""}  # means all of them
    variables = rank_variables(SPEC, inherited)
    assert "OMP_NUM_THREADS" not in variables
    assert "MKL_NUM_THREADS" not in variables
    assert "OPENBLAS_NUM_THREADS" not in variables


@pytest.mark.parametrize(
    ("env", "inherited", "rest"),
    [
        ({}, {}, []),
        ({}, {"PYTHONPATH": "/a:/b"}, ["/a", "/b"]),
        ({"PYTHONPATH": "/c"}, {"PYTHONPATH": "/a"}, ["/c"]),
    ],
)
def test_interpreters_that_a_role_starts_are_recorded(
    env: dict[str, str], inherited: dict[str, str], rest: list[str]
) -> None:
    """Their path has a folder of ours in front of the user's; without roles it is the user's."""
    role = place_roles({"engine": Role(4, env=env)}, "none")
    spec = replace(SPEC, world=replace(SPEC.world, roles=role), role_ports=tuple(range(50)))
    first, *found = rank_variables(spec, inherited)["PYTHONPATH"].split(":")
    assert (first.endswith("rank/children"), found) == (True, rest)
    assert "PYTHONPATH" not in rank_variables(SPEC, inherited)
