"""Values that all ranks are to have: `world.same`."""

from __future__ import annotations

import re

import pytest

SAME = """
import pytest

@pytest.mark.multihost(ranks=3)
def test_equal(world):
    for step in range(3):
        world.same("step", step)
    world.same("names", {"b", "a"})

@pytest.mark.multihost(ranks=3)
def test_differ(world):
    world.same("step", 7 if world.rank == 1 else 8)

@pytest.mark.multihost(ranks=3)
def test_less(world):
    if world.rank != 2:
        world.same("step", 1)

@pytest.mark.multihost(ranks=3)
def test_own_failure(world):
    world.same("step", world.rank)
    assert world.rank == 0, "its own reason"

@pytest.mark.multihost(ranks=3)
def test_alone(world):
    if world.rank == 0:
        world.same("step", 1)
        world.barrier("after")
    else:
        world.barrier("after")
        world.same("step", 1)
"""


@pytest.mark.program(SAME)
def test_a_test_whose_ranks_differ_fails(worlds) -> None:
    """Also one of whose ranks states less than the others; a test's own failure comes first."""
    worlds.run.assert_outcomes(passed=2, failed=3)
    reasons = {name: each["reason"] or "" for name, each in worlds.verdicts.items()}
    line = r"\(test_worlds\w*\.py:11\)"  # each side's line
    sides = rf"ranks 0,2 have 8 {line}; rank 1 has 7 {line}"
    assert re.fullmatch(f"ranks differ in 'step': {sides}", reasons["test_differ"])
    assert "rank 2 has not stated it" in reasons["test_less"]
    assert "ranks differ" not in reasons["test_own_failure"]


@pytest.mark.program(SAME)
def test_a_rank_that_states_a_value_waits_for_nobody(worlds) -> None:
    """Rank 0 goes on to a barrier which the others enter before they state theirs."""
    assert worlds.verdicts["test_alone"]["status"] == "passed"
