"""Commit a checkpoint once all processes have written their part, as orbax does."""

from jax._src import distributed

TIMEOUT_S = 300


def commit(step):
    """Wait until all processes have written their part of a step.

    Raises:
        jax.errors.JaxRuntimeError: One has not, within five minutes.
    """
    client = distributed.global_state.client
    client.wait_at_barrier(f"commit-{step}", timeout_in_ms=TIMEOUT_S * 1000)
