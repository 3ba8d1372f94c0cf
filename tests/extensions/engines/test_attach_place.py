"""The membership of a process in an attached run, from the variables of every launcher."""

from __future__ import annotations

import pytest

from pytest_multihost.core.launch import first_node, parse_address, read_membership
from pytest_multihost.testing import SettingError

pytestmark = pytest.mark.unit

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": "864878593",
}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
JAX = {
    "JAX_PROCESS_ID": "1",
    "JAX_NUM_PROCESSES": "2",
    "JAX_COORDINATOR_ADDRESS": "trainer-0.trainer:1234",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
OURS = {
    "PYTEST_MULTIHOST_RANK": "0",
    "PYTEST_MULTIHOST_SIZE": "3",
    "PYTEST_MULTIHOST_ADDRESS": "ten:8000",
}


@pytest.mark.parametrize(
    ("environment", "source", "rank", "size", "host", "is_one_machine"),
    [
        (TORCHRUN, "torchrun", 3, 4, "127.0.0.1", True),
        (OPEN_MPI, "Open MPI", 1, 2, None, False),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "Open MPI", 1, 2, None, True),
        (SLURM, "Slurm", 1, 2, "gpu07", False),
        (SLURM | {"SLURM_STEP_NUM_NODES": "1"}, "Slurm", 1, 2, "gpu07", True),
        (JAX, "jax", 1, 2, "trainer-0.trainer", False),
        (HYDRA, "PMI", 1, 2, None, True),
        (OURS, "PYTEST_MULTIHOST_*", 0, 3, "ten", False),
    ],
)
def test_each_launcher_is_understood(environment, source, rank, size, host, is_one_machine) -> None:
    """Rank, size, where rank 0 is, and whether that is a machine of ours."""
    membership = read_membership(environment)
    assert (membership.source, membership.rank, membership.size) == (source, rank, size)
    assert (membership.host, membership.is_one_machine) == (host, is_one_machine)


def test_rank_alone_is_not_of_torchrun() -> None:
    """Kubernetes sets it, and so does a program that starts its ranks by `multiprocessing`."""
    plain = {name: text for name, text in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}
    membership = read_membership(plain)
    assert (membership.source, membership.rank) == ("a program that sets RANK", 3)


@pytest.mark.parametrize(
    ("inner", "outer", "source"),
    [
        (TORCHRUN, SLURM, "torchrun"),  # srun has started one torchrun on each machine
        (OPEN_MPI, SLURM | {"SLURM_PROCID": "0"}, "Open MPI"),  # mpirun in an allocation
        (OURS, TORCHRUN, "PYTEST_MULTIHOST_*"),
        (HYDRA, OPEN_MPI, "Open MPI"),  # two that agree
    ],
)
def test_of_nested_launchers_the_innermost_counts(inner, outer, source) -> None:
    """What the outer one has told is about something else."""
    assert read_membership(outer | inner).source == source


def test_two_launchers_that_disagree_are_a_contradiction() -> None:
    """Nobody guesses: the message holds what each has said, and the way out."""
    plain = {"RANK": "0", "WORLD_SIZE": "2"}
    with pytest.raises(SettingError) as found:
        read_membership(plain | OPEN_MPI)
    assert "RANK=0 of WORLD_SIZE=2; OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=2" in str(
        found.value
    )
    assert "PYTEST_MULTIHOST_RANK" in found.value.remedy


def test_plain_variables_that_agree_with_a_launcher_are_none() -> None:
    """A script that copies its launcher's rank into RANK is common."""
    assert read_membership({"RANK": "1", "WORLD_SIZE": "2"} | OPEN_MPI).rank == 1


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "no launcher has given this process a rank"),
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not"),
        ({"PYTEST_MULTIHOST_RANK": "1"}, "PYTEST_MULTIHOST_SIZE is not set"),
        ({"PYTEST_MULTIHOST_SIZE": "1"}, "PYTEST_MULTIHOST_RANK is not set"),
        (OURS | {"PYTEST_MULTIHOST_ADDRESS": ""}, "PYTEST_MULTIHOST_ADDRESS is not"),
        (OURS | {"PYTEST_MULTIHOST_ADDRESS": "ten"}, "must be HOST:PORT, not 'ten'"),
        (OURS | {"PYTEST_MULTIHOST_ADDRESS": "ten:0"}, "must be HOST:PORT"),
        (OURS | {"PYTEST_MULTIHOST_RANK": "3"}, "is too large for PYTEST_MULTIHOST_SIZE=3"),
        (
            OURS | {"PYTEST_MULTIHOST_RANK": "-1"},
            "a whole number of at most 10000, not '-1'",
        ),
        (SLURM | {"SLURM_NTASKS": "two"}, "SLURM_NTASKS must be a whole number"),
    ],
)
def test_what_cannot_be_understood_is_said_by_name(environment, words) -> None:
    """The variable, and what is wrong with it."""
    with pytest.raises(SettingError) as found:
        read_membership(environment)
    assert words in str(found.value)


def test_an_address_can_be_added_to_what_a_launcher_says() -> None:
    """Open MPI does not tell where rank 0 is."""
    membership = read_membership(OPEN_MPI | {"PYTEST_MULTIHOST_ADDRESS": "[fd00::2]:9000"})
    assert membership.addresses == (("fd00::2", 9000),)
    assert membership.source == "Open MPI"


def test_all_processes_of_a_run_try_the_same_ports_and_no_other_run_does() -> None:
    """The launcher's own store has MASTER_PORT, so ports are drawn from the run's name."""
    mine = read_membership(TORCHRUN).addresses
    assert mine == read_membership(TORCHRUN | {"RANK": "0"}).addresses
    assert mine != read_membership(TORCHRUN | {"MASTER_PORT": "29501"}).addresses
    assert len({port for _, port in mine}) > 1
    assert all(20_000 <= port < 30_000 for _, port in mine)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu07", "gpu07"),
        ("gpu[07-09,12]", "gpu07"),
        ("gpu[7,9],x1", "gpu7"),
        ("x1,gpu[07-09]", "x1"),
        ("rack[1-2]-eth,y", "rack1-eth"),
    ],
)
def test_the_first_of_slurms_nodes_is_found(nodes, first) -> None:
    """Its short way of writing them keeps leading zeros."""
    assert first_node(nodes) == first


def test_a_run_of_one_process_is_on_one_machine() -> None:
    """Whatever else is not known."""
    assert read_membership({"RANK": "0", "WORLD_SIZE": "1"}).is_one_machine


def test_an_address_without_a_port_is_none() -> None:
    """And the variable is named."""
    with pytest.raises(SettingError, match="X must be HOST:PORT"):
        parse_address("X", ":80")
