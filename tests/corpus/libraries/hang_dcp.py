"""torch.distributed.checkpoint: one rank fails, is late or does not take part."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter


class SlowWriter(FileSystemWriter):
    """A storage that does not answer one rank."""

    def write_data(self, plan, planner) -> object:
        """Block on rank 1."""
        if dist.get_rank() == 1:
            time.sleep(FOREVER_S)
        return super().write_data(plan, planner)


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_storage_does_not_answer_one_rank_of_a_save(world, shared_tmp_path) -> None:
    """The others wait in the collectives of dcp.save.

    Source: https://github.com/pytorch/torchtitan/issues/3065
    """
    dcp.save({"weight": torch.ones(8)}, storage_writer=SlowWriter(shared_tmp_path / "step-1"))


@hang("finished", ranks=3, backend="gloo", culprits=[1, 2], waiting=[0], waits_at="dcp.save(")
def test_only_the_primary_saves(world, shared_tmp_path) -> None:
    """dcp.save is a collective, and stands below `if rank == 0`.

    Source: https://github.com/pytorch/pytorch/issues/152310
    """
    if world.is_primary:
        dcp.save({"weight": torch.ones(8)}, checkpoint_id=shared_tmp_path / "step-1")


@hang("finished", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2], waits_at="dcp.load(")
def test_one_rank_does_not_see_the_checkpoint_to_load(world, shared_tmp_path) -> None:
    """Each rank asks the file system whether to load; one sees nothing yet.

    Source: https://github.com/KempnerInstitute/KempnerForge/pull/50
    """
    path = shared_tmp_path / "step-1"
    state = {"weight": torch.ones(8)}
    dcp.save(state, checkpoint_id=path)
    if path.exists() and world.rank != 3:
        dcp.load(state, storage_reader=FileSystemReader(path))


@hang(
    "raised",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=["raise"],
    where="raise OSError(28",
)
def test_one_rank_raises_before_the_save(world, shared_tmp_path) -> None:
    """A rank cannot build its state; the others are in the save.

    Source: https://github.com/pytorch/pytorch/pull/77091
    """
    state = {"weight": torch.ones(8)}
    if world.rank == 1:
        raise OSError(28, "No space left on device", str(shared_tmp_path))
    dcp.save(state, checkpoint_id=shared_tmp_path / "step-1")


@hang(
    "straggler",
    ranks=2,
    backend="gloo",
    culprits=[1],
    waiting=[0],
    where="time.sleep(FOREVER_S)",
)
def test_one_rank_never_waits_for_its_asynchronous_save(world, shared_tmp_path) -> None:
    """A rank is stuck before the save whose result the other awaits.

    Source: https://github.com/ByteDance-Seed/VeOmni/pull/1181
    """
    if world.rank == 1:
        time.sleep(FOREVER_S)
    dcp.async_save({"weight": torch.ones(8)}, checkpoint_id=shared_tmp_path / "step-1").result()
