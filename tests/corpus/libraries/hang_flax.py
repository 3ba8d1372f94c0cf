"""Programs of flax in which one process is late, or evaluates alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from expectation import hang
from hang_orbax import sharded, start
from mishaps import FOREVER_S


def make_step() -> tuple[Callable[[Any, jax.Array], jax.Array], Any]:
    """Return a step that all processes must do, and the parameters it takes."""
    model = nn.Dense(1)
    params = model.init(jax.random.key(0), jnp.ones((1, 4)))
    step = jax.jit(lambda params, x: jnp.sum(model.apply(params, jnp.ones((1, 4)))) + x.sum())
    return step, params


@hang(
    "straggler",
    ranks=2,
    backend="jax",
    culprits=[1],
    waiting=[0],
    where="time.sleep(FOREVER_S)",
)
def test_one_process_is_stuck_before_its_second_step(world) -> None:
    """A training loop of flax in which one process waits for data.

    Source: https://github.com/jax-ml/jax/issues/38503
    """
    start()
    step, params = make_step()
    for number in range(3):
        if number == 2 and world.rank == 1:
            time.sleep(FOREVER_S)
        jax.block_until_ready(step(params, sharded()))


@hang(
    "finished",
    ranks=2,
    backend="jax",
    culprits=[1],
    waiting=[0],
    waits_at="print(evaluate(params, sharded()))",
)
def test_the_main_process_evaluates_alone(world) -> None:
    """The evaluation's step is for all processes, and stands below `if process_index() == 0`.

    Source: https://github.com/google/orbax/issues/211
    """
    start()
    step, params = make_step()
    for _ in range(2):
        jax.block_until_ready(step(params, sharded()))
    if jax.process_index() == 0:
        evaluate = step
        print(evaluate(params, sharded()))


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[0],
    by=["mismatch", "proof"],
    where="jax.block_until_ready(evaluate(sharded()))",
    sides={(0,): "evaluate(sharded())", (1, 2): "step(params, sharded())"},
)
def test_the_main_process_evaluates_while_the_others_train(world) -> None:
    """The main process calls another jitted function than the others.

    Source: https://github.com/google/orbax/issues/211
    """
    start()
    step, params = make_step()
    evaluate = jax.jit(lambda x: jnp.outer(x, x).sum(axis=0))
    jax.block_until_ready(step(params, sharded()))
    jax.block_until_ready(evaluate(sharded()))
    if jax.process_index() == 0:
        jax.block_until_ready(evaluate(sharded()))
    jax.block_until_ready(step(params, sharded()))
