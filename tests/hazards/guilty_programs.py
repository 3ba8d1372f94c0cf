"""Programs of jax that processes start in different orders; with several devices, CPUs pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from expectation import guilty, in_order
from jax._src.distributed import global_state
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pytest_multihost import World

LONG_MS = 600_000


def array(devices: Any) -> jax.Array:  # noqa: ANN401 - of numpy or jax
    """Return an array with a row on each device."""
    rows = NamedSharding(Mesh(devices, ("x",)), PartitionSpec("x"))
    local = sum(each.process_index == jax.process_index() for each in devices)
    return jax.make_array_from_process_local_data(rows, np.ones(local), (len(devices),))


@guilty(
    "programs",
    "jax.jit(jnp.sum)(x)",
    "wait_at_barrier",
    backend="jax",
    local_devices=2,
    confirmed=True,
)
def test_a_barrier_before_the_step_of_one_process(world: World) -> None:
    """Process 1 waits for the save first."""
    x, client = array(np.array(jax.devices())), global_state.client
    in_order(
        world.rank,
        [
            lambda: jax.jit(jnp.sum)(x),
            lambda: client.wait_at_barrier("saved", LONG_MS),
        ],
    )


@guilty(
    "programs",
    "jax.jit(jnp.mean)(x)",
    "wait_at_barrier",
    ranks=3,
    backend="jax",
    local_devices=2,
    confirmed=True,
)
def test_a_barrier_of_some_after_the_step_of_one(world: World) -> None:
    """Processes 0 and 1 agree that a file is written; for process 2 there is only the step."""
    x, client = array(np.array(jax.devices())), global_state.client
    steps = [
        lambda: client.wait_at_barrier("written", LONG_MS, [0, 1]),
        lambda: jax.jit(jnp.mean)(x),
    ]
    in_order(world.rank, steps if world.rank < 2 else steps[1:])


@guilty(
    "programs",
    "jax.jit(jnp.sum)(dense)",
    "jax.jit(jnp.max)(experts)",
    backend="jax",
    local_devices=4,
    confirmed=True,
)
def test_programs_on_two_device_sets_in_opposite_orders(world: World) -> None:
    """Each set has two devices of each process."""
    devices = np.array(jax.devices()).reshape(2, 4)
    dense, experts = array(devices[:, :2].ravel()), array(devices[:, 2:].ravel())
    in_order(
        world.rank,
        [
            lambda: jax.jit(jnp.sum)(dense),
            lambda: jax.jit(jnp.max)(experts),
        ],
    )
