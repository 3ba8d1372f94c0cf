"""Programs of flax and optax in which one process is late, evaluates alone or has another state.

The truth of those without a source was written before their first run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from expectation import hang
from flax import serialization
from flax.training.train_state import TrainState
from hang_orbax import sharded, start
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
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


def everywhere(tree: Any) -> Any:  # noqa: ANN401 - a tree of arrays
    """Return a tree of local arrays as one that all processes have a copy of."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole = NamedSharding(mesh, PartitionSpec())

    def copied(leaf: jax.Array) -> jax.Array:
        local = np.asarray(leaf)
        return jax.make_array_from_callback(local.shape, whole, lambda index: local[index])

    return jax.tree.map(copied, tree)


def train_state(width: int = 4) -> TrainState:
    """Return the state of a model of flax with Adam, on all processes."""
    model = nn.Dense(width)
    params = model.init(jax.random.key(0), jnp.ones((1, 3)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2))
    return everywhere(state)


def batch() -> jax.Array:
    """Return a batch of which each process has some rows."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_process_local_data(rows, np.ones((2, 3), np.float32))


@jax.jit
def update(state: TrainState, x: jax.Array) -> TrainState:
    """Take a step; the gradients are those of all processes."""
    loss = lambda params: jnp.mean((state.apply_fn(params, x) - 1) ** 2)  # noqa: E731
    return state.apply_gradients(grads=jax.grad(loss)(state.params))


def trained(state: TrainState, steps: int = 1) -> TrainState:
    """Take steps and wait for each."""
    for _ in range(steps):
        state = jax.block_until_ready(update(state, batch()))
    return state


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[2],
    waiting=[0, 1],
    by=["exit", "mismatch", "proof", "raise"],
    outcome=["crashed", "hung", "failed"],
)
def test_one_process_logs_the_mean_of_its_inputs(world) -> None:
    """The batch is spread over all processes, so that mean is a program of all of them."""
    state = trained(train_state(), 2)
    if world.rank == 2:
        print(float(jnp.mean(batch())))
    trained(state)


@hang("finished", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], waits_at="update(state")
def test_one_process_stops_early(world) -> None:
    """The loss on its own validation set has become worse."""
    state = train_state()
    for step in range(5):
        state = trained(state)
        if world.rank == 1 and step == 2:
            break


@hang("raised", ranks=3, backend="jax", culprits=[0], waiting=[1, 2], by=["raise"])
def test_the_primary_cannot_restore_the_state_of_another_model(world) -> None:
    """The others wait for the parameters that it broadcasts."""
    state = nn.Dense(4).init(jax.random.key(0), jnp.ones((1, 3)))
    if world.is_primary:
        data = serialization.to_bytes({"params": {"bias": np.ones(4), "scale": np.ones(4)}})
        state = serialization.from_bytes(state, data)
    multihost_utils.broadcast_one_to_all(state)


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[1],
    by=["exit", "proof", "mismatch", "raise"],
    outcome=["crashed", "hung", "failed"],
)
def test_one_process_has_a_wider_model(world) -> None:
    """Its configuration is that of another run."""
    start()
    trained(train_state(900 if world.rank == 1 else 4))


@hang("finished", ranks=3, backend="jax", culprits=[2], waiting=[0, 1], waits_at="allgather")
def test_one_process_accumulates_more_micro_steps(world) -> None:
    """Each gathers its gradients when it has enough of them, so process 2 does so less often."""
    every = 3 if world.rank == 2 else 2
    steps = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=every)
    params = jnp.zeros(3)
    state = steps.init(params)
    for _ in range(6):
        _, state = steps.update(jnp.ones(3), state, params)
        if steps.has_updated(state):
            multihost_utils.process_allgather(np.ones(3))


@hang(
    "straggler",
    ranks=2,
    backend="jax",
    culprits=[1],
    waiting=[0],
    by=["deadline", "proof"],
    also=[{"kind": "livelock", "culprits": [1]}],
    why="it sleeps most of the time",
    timeout=10,
)
def test_one_process_polls_for_a_state_that_comes_after_the_step(world, shared_tmp_path) -> None:
    """The primary writes the state once it has taken a step, for which it needs the other."""
    state, file = train_state(), shared_tmp_path / "state.msgpack"
    start()
    if world.rank == 1:
        while not file.exists():
            time.sleep(0.05)
        serialization.msgpack_restore(file.read_bytes())
    state = trained(state)
    if world.is_primary:
        file.write_bytes(serialization.to_bytes(state.params))
