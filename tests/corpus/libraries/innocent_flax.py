"""Training loops of flax and optax with a process that is late, or has more to do."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from expectation import innocent
from flax import serialization
from hang_flax import make_step, train_state, trained
from hang_orbax import sharded, start
from jax.experimental import multihost_utils

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


@innocent(ranks=3, backend="jax")
def test_the_primary_evaluates_its_own_copy(world) -> None:
    """Its copy of the parameters is on its own device, so nobody else is needed for that."""
    state = trained(train_state(), 2)
    if world.is_primary:
        params = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), state.params)
        until = time.monotonic() + LATE_S
        while time.monotonic() < until:
            jax.block_until_ready(jax.jit(state.apply_fn)(params, jnp.ones((8, 3))))
    trained(state)


@innocent(ranks=2, backend="jax")
def test_one_process_polls_for_a_state_that_the_primary_writes_slowly(
    world, shared_tmp_path
) -> None:
    """No other rank is needed to write it."""
    state, file = trained(train_state()), shared_tmp_path / "state.msgpack"
    if world.is_primary:
        time.sleep(LATE_S)
        part = file.with_suffix(".part")
        part.write_bytes(serialization.to_bytes(state.params))
        part.rename(file)
    while not file.exists():
        time.sleep(0.05)
    serialization.msgpack_restore(file.read_bytes())
    trained(state)


@innocent(ranks=3, backend="jax")
def test_micro_steps_of_one_process_are_slow(world) -> None:
    """All accumulate as many before they gather."""
    steps = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=2)
    params = jnp.zeros(3)
    state = steps.init(params)
    for _ in range(4):
        time.sleep(1.5 * (world.rank == 2))
        _, state = steps.update(jnp.ones(3), state, params)
        if steps.has_updated(state):
            multihost_utils.process_allgather(np.ones(3))
