"""Tests whose ranks run several programs."""

from __future__ import annotations

import pytest

PROGRAM = """
import os, time
import pytest
from pytest_multihost import Role, faults

ROLES = {"trainer": 2, "engine": Role(2, env={"KIND": "decode"}), "driver": 1}

@pytest.mark.multihost(roles=ROLES, hosts="one", timeout=20)
def test_passes(world):
    seen = world.gather({
        "role": (world.role, world.role_rank, world.role_size),
        "torchrun": (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["ROLE_NAME"]),
        "meets": os.environ["MASTER_PORT"],
        "port": world.port("engine", 1),
        "kind": os.environ.get("KIND"),
    })
    assert [each["role"] for each in seen] == [
        ("trainer", 0, 2), ("trainer", 1, 2), ("engine", 0, 2), ("engine", 1, 2), ("driver", 0, 1)
    ]
    assert [each["torchrun"] for each in seen] == [
        (str(number), str(size), name) for name, number, size in (each["role"] for each in seen)
    ]
    assert len({each["meets"] for each in seen}) == 3
    assert len({each["port"] for each in seen}) == 1 and seen[0]["port"] < 32768
    assert [each["kind"] for each in seen] == [None, None, "decode", "decode", None]
    assert list(world.ranks_of("engine")) == [2, 3]
    assert (world.size, world.rank) == (5, world.ranks_of(world.role)[world.role_rank])

@pytest.mark.multihost(roles=ROLES, hosts="one", timeout=20)
def test_hangs(world):
    if world.role == "engine" and world.role_rank == 1:
        time.sleep(600)
    world.barrier("weights")

@pytest.mark.multihost_expect("straggler", culprits="engine:0", waiting=["trainer", "driver"])
@pytest.mark.multihost(
    roles={"trainer": 2, "engine": 1, "driver": 1},
    hosts="one",
    timeout=20,
    faults=[faults.delay(rank="engine", seconds=600)],
)
def test_fault(world):
    world.barrier("weights")

@pytest.mark.multihost(roles=ROLES, hosts="one", timeout=20)
def test_fails(world):
    assert world.role != "engine", "its own reason"
"""


@pytest.mark.claim("test several programs at once, as trainers and engines")
@pytest.mark.program(PROGRAM)
def test_each_role_has_numbers_ports_and_variables_of_its_own(worlds) -> None:
    """The test itself asserts it; the world's own numbers stay."""
    assert worlds.verdicts["test_passes"]["status"] == "passed"


@pytest.mark.program(PROGRAM)
def test_a_verdict_names_the_role(worlds) -> None:
    """In the summary and on the page, and for each rank."""
    found = worlds.verdicts["test_hangs"]
    assert found["diagnosis"]["summary"].startswith("engine 1 never reached world.barrier")
    assert found["diagnosis"]["culprits"] == [3]
    roles = [(each["role"], each["role_rank"]) for each in found["rank_results"]]
    assert roles[2:] == [("engine", 0), ("engine", 1), ("driver", 0)]
    assert "► engine 1" in worlds.stdout
    assert "trainer 0,1, engine 0, driver 0  waiting" in " ".join(worlds.stdout.split("   "))
    assert "2 trainer (none), 2 engine (none), 1 driver (none)" in worlds.stdout


@pytest.mark.program(PROGRAM)
def test_faults_and_expectations_name_roles(worlds) -> None:
    """A role's name stands for all its ranks."""
    found = worlds.verdicts["test_fault"]
    assert (found["status"], found["faults"][0]["ranks"]) == ("passed", [2])


@pytest.mark.program(PROGRAM)
def test_a_failure_names_the_role(worlds) -> None:
    """As the headline of its report."""
    assert "engine 0,1" in worlds.stdout


SIZED = """
import pytest

@pytest.mark.multihost(roles={"trainer": 2, "engine": 2, "driver": 1}, hosts="one", timeout=20)
def test_two(world):
    pass

@pytest.mark.multihost(roles={"trainer": 2, "engine": 1, "driver": 1}, hosts="one", timeout=20)
def test_one(world):
    pass
"""


@pytest.mark.program(SIZED, "--ranks", "trainer=1,engine=3")
def test_sizes_can_be_given_on_the_command_line(worlds) -> None:
    """Other roles keep theirs."""
    sizes = [
        [each["role"] for each in worlds.verdicts[name]["rank_results"]]
        for name in ("test_two", "test_one")
    ]
    assert sizes[0] == ["trainer", "engine", "engine", "engine", "driver"]
    assert sizes[1] == sizes[0]


@pytest.mark.parametrize(
    ("marker", "told"),
    [
        ("roles={'others': 2}", "names of letters"),
        ("3, roles={'a': 2}", "has ranks and roles"),
        ("roles={'a': 2}, faults=[faults.delay(rank='b', seconds=1)]", "there is no role 'b'"),
        ("roles={'a': Role(2, backend='mpi')}", "mpi"),
        ("roles={'a': Role(2, backend='simulated')}", "needs the whole world"),
    ],
)
def test_a_wrong_role_is_a_usage_error(run_worlds, marker: str, told: str) -> None:
    """With the test's name, before any world starts."""
    source = f"""
import pytest
from pytest_multihost import Role, faults

@pytest.mark.multihost({marker})
def test_it(world):
    pass
"""
    found = run_worlds(source)
    assert found.run.ret == pytest.ExitCode.USAGE_ERROR
    assert told in found.run.stderr.str()


def test_a_size_for_a_role_that_no_test_has_is_a_usage_error(run_worlds) -> None:
    """It would change nothing."""
    found = run_worlds(PROGRAM, "--ranks", "motor=3")
    assert found.run.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "no test has a role 'motor'; there are: trainer, engine, driver" in found.run.stderr.str()
    )


GROUPS = """
import time
import pytest
import torch
import torch.distributed as dist
from pytest_multihost import Role

@pytest.mark.multihost(
    roles={"trainer": 1, "engine": Role(3, backend="gloo"), "driver": Role(2, backend="gloo")},
    hosts="one",
    timeout=20,
)
def test_hangs(world):
    if world.role == "trainer":
        assert not dist.is_initialized()
        return
    total = torch.ones(1)
    dist.all_reduce(total)
    assert (dist.get_rank(), total.item()) == (world.role_rank, world.role_size)
    if world.role == "engine" and world.role_rank == 2:
        time.sleep(600)
    dist.all_reduce(total)
"""


@pytest.mark.program(GROUPS)
def test_a_role_with_a_backend_has_a_process_group_of_its_own(worlds) -> None:
    """Its members are the role's ranks, and a verdict names them so."""
    found = worlds.verdicts["test_hangs"]["diagnosis"]
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [3], [1, 2])
    summary = "engine 2 never reached all_reduce #2 (group engine 0-2)"
    assert found["summary"].startswith(summary)


SERVED = """
import http.client, sys, time
import pytest
from pytest_multihost import Role

@pytest.mark.multihost(
    roles={
        "server": Role(1, run="-m http.server {port} --bind 127.0.0.1 --directory ."),
        "client": 1,
    },
    timeout=25,
)
def test_hangs(world):
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", world.port("server"))
        try:
            connection.request("GET", "/")
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    assert connection.getresponse().status == 200
    time.sleep(600)

@pytest.mark.multihost(
    roles={"some": Role(2, run="-c"), "other": 1}, timeout=25, hosts="one"
)
def test_without(world):
    pass

@pytest.mark.multihost(
    roles={"some": Role(2, run="-m json.tool --help {rank} {ports[other]}"), "other": 1},
    timeout=25,
    hosts="one",
)
def test_ends(world):
    assert world.role == "other"
"""


@pytest.mark.program(SERVED)
def test_a_role_can_run_a_program_in_place_of_the_test(worlds) -> None:
    """An idle server of Python's library is not blamed for a client that sleeps."""
    found = worlds.verdicts["test_hangs"]["diagnosis"]
    assert (found["kind"], found["culprits"]) == ("stuck", [1])
    assert "Serving HTTP on 127.0.0.1" in worlds.stdout
    assert worlds.verdicts["test_ends"]["status"] == "passed"


@pytest.mark.program(SERVED)
def test_a_program_that_does_not_exist_fails_the_role(worlds) -> None:
    """The other role has run the test."""
    found = worlds.verdicts["test_without"]
    assert found["status"] == "failed"
    assert "there is no program '-c'" in found["rank_results"][0]["error"]["text"]
