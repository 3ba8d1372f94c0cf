"""Real worlds in which one rank goes wrong: who is accused, and who is not.

A false accusation is worse than none: a reader who was sent to the wrong rank once does not look
at the page again. Each run ends with a test that passes, in the same run, after the disaster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

RunWorlds = Callable[..., Any]

GLOO = """
import os, signal, time
from datetime import timedelta
import pytest, torch
import torch.distributed as dist

@pytest.mark.multihost(ranks=4, backend="gloo", timeout=60)
def test_it(world):
    dist.all_reduce(torch.ones(3))
    {body}

@pytest.mark.multihost(ranks=4, backend="gloo", timeout=60)
def test_next(world):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world.size
"""

JAX = """
import os, signal, time
import jax, pytest
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jax._src.distributed import global_state

def barrier():
    global_state.client.wait_at_barrier("here", 100_000)

@pytest.mark.multihost(ranks=4, backend="jax", timeout=60)
def test_it(world):
    multihost_utils.process_allgather(jnp.ones(3))
    {body}

@pytest.mark.multihost(ranks=4, backend="jax", timeout=60)
def test_next(world):
    assert multihost_utils.process_allgather(jnp.ones(1)).sum() == world.size
"""

COLLECTIVE = {
    GLOO: "dist.all_reduce(torch.ones(3))",
    JAX: "multihost_utils.process_allgather(jnp.ones(3))",
}
