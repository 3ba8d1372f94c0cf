"""What programs of jax have in common: arrays and steps over all processes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state
from jax.sharding import Mesh, NamedSharding, PartitionSpec

OVER = PartitionSpec("x")


def service() -> Any:  # noqa: ANN401 - jax's own type is private
    """Return the client of the coordination service."""
    return global_state.client


def mesh() -> Mesh:
    """Return a mesh of all devices."""
    return Mesh(np.array(jax.devices()), ("x",))


def spread(value: float, kind: type = np.float32) -> jax.Array:
    """Return an array with one element on each device of the world."""
    over = NamedSharding(mesh(), OVER)
    size = len(jax.devices())
    return jax.make_array_from_callback((size,), over, lambda _: np.full(1, value, kind))


def train(count: int) -> None:
    """Take steps that need all processes, and wait for each."""
    step = jax.jit(lambda x: x - 0.1 * x.mean())
    for _ in range(count):
        jax.block_until_ready(step(spread(1.0)))
