from __future__ import annotations

import importlib

import pytest
import torch
from accelerate.state import DistributedType, PartialState

from pytest_multihost import World


@pytest.mark.multihost(ranks=2, backend="none", timeout=60)
@pytest.mark.parametrize(
    "script",
    ["test_script", "test_sync"],  # the first is what `accelerate test` runs
)
def test_accelerates_own_scripts_pass_as_tests(
    script: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that makes its group from torchrun's variables finds its world in ours."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")

    torch.manual_seed(0)  # it compares sums of random numbers to 5 digits: not every draw agrees
    importlib.import_module(f"accelerate.test_utils.scripts.{script}").main()

    state = PartialState()
    assert (state.distributed_type, state.backend) == (DistributedType.MULTI_CPU, "gloo")
    assert (state.num_processes, state.process_index) == (world.size, world.rank)
