"""The table of collectives beside the runtimes that are installed: what they have gets a row."""

from __future__ import annotations

import re

import jax.experimental.multihost_utils
import pytest
import torch.distributed as dist
from torch.distributed.flight_recorder.components import types

from pytest_multihost.testing import (
    BY_METHOD,
    C10D,
    COLLECTIVES,
    MULTIHOST_UTILS,
    of_flight_name,
    of_function,
)

PATTERN = re.compile(
    r"_?(all_?reduce|all_?gather|all_?to_?all|reduce_scatter|broadcast|gather|scatter|reduce)(_.*)?"
    r"|(monitored_)?barrier"
)
OF_OTHERS = {"reduce_op"}
"""A class, deprecated."""

NO_COLLECTIVES = {"_broadcast_oop", "_reduce_oop", "new_window", "split"}
"""In the flight recorder: parts of others that not every rank records, and what makes things."""


def test_torchs_public_collectives_are_in_the_table() -> None:
    """A new one must get a row, or a rank that waits in it is not understood."""
    named = {each for each in dist.distributed_c10d.__all__ if PATTERN.fullmatch(each)} - OF_OTHERS
    assert named
    assert {each for each in named if of_function(C10D, each) is None} == set()


def test_the_collectives_of_a_process_group_are_in_the_table() -> None:
    """What is not wrapped is not recorded."""
    methods = {each for each in vars(dist.ProcessGroup) if PATTERN.fullmatch(each)}
    assert methods
    assert methods - BY_METHOD.keys() == set()


def test_the_names_of_the_flight_recorder_are_in_the_table() -> None:
    """The reader of dumps that comes with torch has a list of them."""
    unknown = {each for each in types.COLLECTIVES if of_flight_name(each) is None}
    assert unknown - NO_COLLECTIVES == set()


def test_functions_of_multihost_utils_are_those_of_jax() -> None:
    """A row for one that is gone would never be met."""
    names = [n for each in COLLECTIVES if each.file == MULTIHOST_UTILS for n in each.functions]
    assert names
    assert [each for each in names if not hasattr(jax.experimental.multihost_utils, each)] == []


@pytest.mark.parametrize("name", ["all_gather_single", "reduce_scatter_single"])
def test_a_collective_may_have_two_functions(name: str) -> None:
    """Two were renamed in torch 2.13, and the old names were kept."""
    assert hasattr(dist, name)
    found = of_function(C10D, name)
    assert found is not None
    assert all(hasattr(dist, each) for each in found.functions)
