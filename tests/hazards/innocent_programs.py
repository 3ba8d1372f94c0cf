"""Programs of jax that all processes start in one order, however late and from wherever."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from expectation import innocent
from guilty_programs import array
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

from pytest_multihost import World


@innocent(backend="jax", local_devices=2)
def test_two_meshes_in_one_order(world: World) -> None:
    """One process is late for both."""
    devices = np.array(jax.devices()).reshape(2, 2)
    time.sleep(world.rank)
    for each in (array(devices[:, 0]), array(devices[:, 1])):
        jax.jit(jnp.sum)(each)


@innocent(backend="jax", local_devices=2)
def test_steps_between_barriers(world: World) -> None:
    """Programs, barriers of the service and of jax's own in turn."""
    x = array(np.array(jax.devices()))
    for step in range(3):
        time.sleep(0.2 * world.rank)
        jax.jit(lambda x, step=step: jnp.sum(x) + step)(x)
        global_state.client.wait_at_barrier(f"step-{step}", 20_000)
        multihost_utils.sync_global_devices(f"step {step}")


@innocent(backend="jax", local_devices=2)
def test_programs_of_its_own(world: World) -> None:
    """The primary computes alone between two steps of all."""
    x = array(np.array(jax.devices()))
    jax.jit(jnp.sum)(x)
    if world.is_primary:
        print(float(jax.jit(jnp.max)(jnp.ones(4))))
    jax.jit(jnp.mean)(x)
