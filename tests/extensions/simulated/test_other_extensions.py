"""What follows a test that has passed works on simulated ranks, too: hazards and sweeps."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py


@pytest.mark.program(
    """
    import pytest, torch
    import torch.distributed as dist

    def launch_on_two_groups(is_swapped):
        groups = [dist.new_group(), dist.new_group()]
        works = [
            dist.all_reduce(torch.ones(1), group=group, async_op=True)
            for group in (reversed(groups) if is_swapped else groups)]
        for each in works:
            each.wait()

    @pytest.mark.multihost(ranks=4, backend="simulated")
    def test_two_orders(world):
        launch_on_two_groups(world.rank % 2)

    @pytest.mark.multihost(ranks=4, backend="simulated")
    def test_one_order(world):
        launch_on_two_groups(False)
    """,
    "--multihost-hazards=fail",
)
def test_groups_launched_in_two_orders_are_a_hazard(worlds: Worlds) -> None:
    """The record of a simulated world says it; NCCL may hang there."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    worlds.run.stdout.fnmatch_lines(
        ["*order*launch operations of their groups in different orders"]
    )


@pytest.mark.program(
    """
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.multihost(ranks=8, backend="simulated")
    def test_step(world, shared_tmp_path):
        path = shared_tmp_path / "state"
        if world.rank == 0:
            path.write_text("1")
        dist.barrier()
        if path.exists():
            dist.all_reduce(torch.ones(1))
        dist.barrier()
    """,
    "--multihost-sweep",
    "--multihost-sweep-budget=40",
)
def test_a_sweep_disturbs_one_rank_of_each_class(worlds: Worlds) -> None:
    """Seven of eight ranks do the same, so one stands for them."""
    worlds.run.assert_outcomes(failed=1)
    worlds.run.stdout.fnmatch_lines(["*did not see other ranks' new files*stands for ranks 1-7"])
