"""Checkpoints that look like hangs for a while, and are written."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from expectation import innocent
from torch.distributed.checkpoint import FileSystemWriter

LATE_S = 3.0
"""Longer than a proof takes."""


class SlowWriter(FileSystemWriter):
    """A storage that takes a while on one rank."""

    def write_data(self, plan, planner) -> object:
        """Be slow on rank 1."""
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        return super().write_data(plan, planner)


@innocent(ranks=3, backend="gloo")
def test_storage_is_slow_for_one_rank_of_a_save(world, shared_tmp_path) -> None:
    """The others wait in the collectives of dcp.save."""
    dcp.save({"weight": torch.ones(8)}, storage_writer=SlowWriter(shared_tmp_path / "step-1"))


@innocent(ranks=2, backend="gloo")
def test_an_asynchronous_save_ends_late(world, shared_tmp_path) -> None:
    """Both ranks await a save that a thread of theirs performs slowly."""
    writer = SlowWriter(shared_tmp_path / "step-1")
    dcp.async_save({"weight": torch.ones(8)}, storage_writer=writer).result()
