"""A training loop of flax with a process that is late."""

from __future__ import annotations

import time

import jax
from expectation import innocent
from hang_flax import make_step
from hang_orbax import sharded, start

LATE_S = 3.0
"""Longer than a proof takes."""


@innocent(ranks=2, backend="jax")
def test_a_step_of_flax_is_late_on_one_process(world) -> None:
    """A process is late for each of its steps."""
    start()
    step, params = make_step()
    for _ in range(2):
        jax.block_until_ready(step(params, sharded()))
        time.sleep(LATE_S * world.rank)
    jax.block_until_ready(step(params, sharded()))
