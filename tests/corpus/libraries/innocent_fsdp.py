"""FSDP2 with a rank that is late."""

from __future__ import annotations

import time

import torch
from expectation import innocent
from hang_fsdp import sharded

LATE_S = 3.0
"""Longer than a proof takes."""


@innocent(ranks=2, backend="gloo")
def test_a_rank_shards_slowly(world) -> None:
    """FSDP's gathers wait for a rank that loads weights."""
    model = sharded(world)
    time.sleep(LATE_S * world.rank)
    model(torch.ones(2, 8)).sum().backward()
