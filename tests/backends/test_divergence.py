"""Real worlds on gloo whose ranks part: where they did, and who is innocent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from runtimes import skip_if_missing

PARTING = """
import time
import pytest, torch
import torch.distributed as dist

pytestmark = pytest.mark.multihost(ranks=3, backend="gloo", timeout=30)

def step(group=None):
    dist.all_reduce(torch.ones(2), group=group)

def evaluate():
    dist.all_reduce(torch.ones(2))

def gather():
    parts = [torch.zeros(1) for _ in range(3)]
    dist.all_gather(parts, torch.ones(1))

def save(world):
    if world.is_primary:
        dist.broadcast(torch.ones(1), src=0)  # rank 0 alone
    else:
        dist.broadcast(torch.zeros(1), src=0)  # the others

def test_one_in_another_operation(world):
    for _ in range(5):
        step()
    if world.rank == 1:
        gather()
    step()

def test_a_root_passes_its_broadcast(world):
    step()
    if world.rank == 0:
        dist.broadcast(torch.ones(1), src=0)
        dist.barrier()
    else:
        step()

def test_a_broadcast_lets_one_of_three_pass(world):
    step()
    if world.rank != 2:
        dist.broadcast(torch.ones(1), src=0)
    step()

def test_three_operations_at_the_end(world):
    step()
    if world.rank == 1:
        dist.broadcast(torch.ones(1), src=1)  # astray
        gather()
    step()
    if world.rank == 0:
        dist.barrier()

def test_lines_show_it_first(world):
    for number in range(4):
        step()
        if world.rank == 1 and number == 1:
            evaluate()
    gather()

def test_one_step_less(world):
    for _ in range(5 - (world.rank == 2)):
        step()

def test_one_step_less_in_another_group(world):
    group = dist.new_group()
    dist.barrier()
    for _ in range(5 - (world.rank == 2)):
        step(group)
    dist.barrier()

def test_branches_of_a_late_rank(world):
    for _ in range(3):
        step()
        save(world)
    if world.rank == 2:
        time.sleep(600)
    step()

def test_branches_before_another_goes_astray(world):
    for _ in range(3):
        step()
        save(world)
    if world.rank == 2:
        gather()
    step()

def test_groups_in_orders_of_each_rank(world):
    groups = [dist.new_group(), dist.new_group()]
    for _ in range(3):
        order = groups if world.is_primary else groups[::-1]
        works = [dist.all_reduce(torch.ones(2), group=each, async_op=True) for each in order]
        for work in works:
            work.wait()
    if world.rank == 2:
        time.sleep(600)
    step()

def test_branches_that_pass(world):
    for _ in range(3):
        step()
        save(world)
"""


@pytest.fixture(scope="module")
def diagnoses(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Run all tests above once, and return the diagnosis of each."""
    path = tmp_path_factory.mktemp("divergence")
    (path / "test_parting.py").write_text(PARTING)
    (path / "pytest.ini").write_text("[pytest]\n")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs"],
        cwd=path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
        text=True,
    )
    print(finished.stdout)
    skip_if_missing(finished.stdout)
    lines = (path / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return {each["nodeid"].rpartition("::test_")[2]: each["diagnosis"] for each in found}


Side = tuple[list[int], str | None, int | None]


@pytest.mark.parametrize(
    ("test", "kind", "culprits", "sides"),
    [
        ("one_in_another_operation", "mismatch", [1], [([1], "gather", 1), ([0, 2], "step", 6)]),
        (
            "a_root_passes_its_broadcast",
            "mismatch",
            [0],
            [([0], "test_a_root_passes_its_broadcast", 1), ([1, 2], "step", 2)],
        ),
        (
            "a_broadcast_lets_one_of_three_pass",
            "mismatch",
            [2],
            [([2], "step", 2), ([0, 1], "test_a_broadcast_lets_one_of_three_pass", 1)],
        ),
        (
            "three_operations_at_the_end",
            "mismatch",
            [1],
            [([1], "test_three_operations_at_the_end", 1), ([0, 2], "step", 2)],
        ),
        ("lines_show_it_first", "mismatch", [1], [([1], "evaluate", 1), ([0, 2], "step", 3)]),
        ("one_step_less", "finished", [2], [([2], None, 4), ([0, 1], "step", 5)]),
        (
            "one_step_less_in_another_group",
            "mismatch",
            [2],
            [([2], "test_one_step_less_in_another_group", 4), ([0, 1], "step", 5)],
        ),
        (
            "branches_before_another_goes_astray",
            "mismatch",
            [2],
            [([2], "gather", 1), ([0, 1], "step", 4)],
        ),
    ],
)
def test_the_first_divergence_is_told(
    diagnoses: Mapping[str, Any], test: str, kind: str, culprits: list[int], sides: list[Side]
) -> None:
    """Who did what in which function, for which time; culprits follow from it."""
    diagnosis = diagnoses[test]
    found = diagnosis["divergence"]["sides"]
    assert (diagnosis["kind"], diagnosis["culprits"]) == (kind, culprits)
    assert [(each["ranks"], each["function"], each["count"]) for each in found] == sides


@pytest.mark.parametrize("test", ["branches_of_a_late_rank", "groups_in_orders_of_each_rank"])
def test_ranks_in_branches_of_their_own_are_not_told_of(
    diagnoses: Mapping[str, Any], test: str
) -> None:
    """Rank 2 is late; that rank 0 came by other lines, or in another order, is no divergence."""
    diagnosis = diagnoses[test]
    assert (diagnosis["kind"], diagnosis["culprits"]) == ("straggler", [2])
    assert diagnosis["divergence"] is None


def test_branches_that_pass_are_not_diagnosed(diagnoses: Mapping[str, Any]) -> None:
    """Nobody asks where the ranks of a world that passes were."""
    assert diagnoses["branches_that_pass"] is None
