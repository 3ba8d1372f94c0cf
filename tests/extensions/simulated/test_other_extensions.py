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
    import threading, time
    import pytest, torch
    import torch.distributed as dist

    def saves_beside_a_barrier(world, is_joined):
        time.sleep(0.2 * (world.rank == 1))
        saver = threading.Thread(target=lambda: dist.all_reduce(torch.ones(3)))
        saver.start()
        if is_joined:
            saver.join()
        time.sleep(0.1)
        dist.barrier()
        saver.join()

    @pytest.mark.multihost(ranks=4, backend="simulated")
    def test_two_threads(world):
        saves_beside_a_barrier(world, False)

    @pytest.mark.multihost(ranks=4, backend="simulated")
    def test_one_thread_after_the_other(world):
        saves_beside_a_barrier(world, True)
    """,
    "--multihost-hazards=fail",
)
def test_threads_that_use_one_group_at_a_time_are_a_hazard(worlds: Worlds) -> None:
    """The record of one run says it; a thread that is joined first looks the same and is none."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    worlds.run.stdout.fnmatch_lines(["*threads*two threads of *are in operations of the world*"])


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


@pytest.mark.program(
    """
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.multihost(ranks=64, backend="simulated")
    def test_step(world, shared_tmp_path):
        mesh = dist.init_device_mesh("cpu", (4, 8, 2), mesh_dim_names=("pp", "dp", "tp"))
        if world.rank == 0:
            (shared_tmp_path / "state").write_text("1")
        dist.barrier()
        if (shared_tmp_path / "state").exists():
            dist.all_reduce(torch.ones(1))
        try:
            if mesh.get_local_rank("pp") == 3:
                (shared_tmp_path / f"loss-{world.rank}").write_text("0.5")
        except OSError:
            return
        dist.barrier()
    """,
    "--multihost-sweep",
    "--multihost-sweep-budget=120",
)
def test_a_sweep_at_a_shape_disturbs_one_rank_of_each_class(worlds: Worlds) -> None:
    """Of 64 ranks there are three classes: the first, the last stage, and all others."""
    worlds.run.assert_outcomes(failed=1)
    worlds.run.stdout.fnmatch_lines(
        [
            "*did not see other ranks' new files*",
            "*rank 48's * of */loss-48 failed with *rank 48 stands for ranks 48-63",
            "*3 classes of ranks: rank 0; ranks 1-47; ranks 48-63",
        ]
    )
