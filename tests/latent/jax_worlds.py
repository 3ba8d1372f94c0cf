"""Worlds of jax: its coordination service, its barriers and its collectives."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
from expectation import latent, robust
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

from pytest_multihost import at, faults

LONG_MS = 600_000
BUILD_S = 0.3


def meet_at(name: str) -> None:
    """Wait for all processes at a barrier of the coordination service."""
    global_state.client.wait_at_barrier(name, LONG_MS)  # <- waits


def mean_of(value: float) -> float:
    """Return the mean over all processes."""
    return float(multihost_utils.process_allgather(jnp.array([value])).mean())  # <- waits


@latent(
    family="fails",
    ranks=2,
    backend="jax",
    by_hand=faults.fails(rank=0, at=at.io("*/checkpoint.orbax-tmp", call="mkdir")),
)
def test_primary_makes_the_temporary_folder(world, shared_tmp_path) -> None:
    """Only the primary makes the folder that all are to write into, unguarded.

    Source: modelled on the pattern of https://github.com/google/orbax/issues/3181 (processes that
    wait for a primary which is still at its files)
    """
    mean_of(1.0)
    if jax.process_index() == 0:
        (shared_tmp_path / "checkpoint.orbax-tmp").mkdir()  # <- latent
    multihost_utils.sync_global_devices("create_tmp_directory:post")  # <- waits


@latent(
    family="fails",
    ranks=2,
    backend="jax",
    by_hand=faults.fails(rank=0, at=at.io("*/config.json", call="open")),
)
def test_primary_publishes_the_configuration(world) -> None:
    """The others wait for a key that the primary sets once it has read a file.

    Source: https://github.com/marin-community/marin/pull/7039 (keys of the coordination service
    that are waited for)
    """
    client = global_state.client
    if jax.process_index() == 0:
        config = (Path(__file__).parent / "config.json").read_text()  # <- latent
        client.key_value_set("config", config)  # <- latent
    else:
        config = client.blocking_key_value_get("config", LONG_MS)  # <- waits
    print("steps:", json.loads(config)["steps"])


@latent(
    family="fails",
    ranks=2,
    backend="jax",
    by_hand=faults.fails(rank=1, at=at.io("*/process-1", call="open")),
)
def test_barriers_are_numbered_by_each_process(world, shared_tmp_path) -> None:
    """A process that could not write leaves out a barrier, so its next one has another name.

    Source: https://github.com/marin-community/marin/pull/8538 (names from a local counter)
    """
    count = 0
    for _ in range(2):
        try:
            (shared_tmp_path / f"process-{jax.process_index()}").write_text("shard")  # <- latent
        except OSError as error:
            print("not written:", error)
            continue
        count += 1
        meet_at(f"barrier {count}")
    meet_at(f"barrier {count + 1}")


@latent(
    family="late",
    ranks=2,
    backend="jax",
    by_hand=faults.hold(rank=0, at=at.call("jax_worlds:announce")),
)
def test_asks_once_whether_there_is_a_state(world) -> None:
    """A process that asks too early for the announced state starts afresh.

    Source: https://github.com/KempnerInstitute/KempnerForge/issues/49 (each rank asks by itself)
    """
    if jax.process_index() == 0:
        announce("7")  # <- latent
    time.sleep(BUILD_S)
    try:
        step = int(global_state.client.key_value_try_get("resume-from"))  # <- latent
    except jax.errors.JaxRuntimeError:
        step = 0
    if step:
        meet_at("restored")
    meet_at("ready")


def announce(step: str) -> None:
    """Tell all processes from which step the run is resumed."""
    global_state.client.key_value_set("resume-from", step)  # <- latent


def batches() -> Iterator[jax.Array]:
    """Yield the batches of this process."""
    for number in range(4):
        yield jnp.full((2,), float(number))


@latent(
    family="differs",
    ranks=2,
    backend="jax",
    by_hand=faults.short_data(rank=1, at=at.batch("jax_worlds:batches", nth=4)),
)
def test_each_process_steps_through_its_own_data(world) -> None:
    """A step is a collective, and one process has a batch less.

    Source: https://github.com/marin-community/marin/pull/7039 (a step that every process must
    enter with its batch)
    """
    for batch in batches():  # <- latent
        mean_of(float(batch.mean()))


def is_intact() -> bool:
    """Return whether this process still has its buffers."""
    return True


@latent(
    family="differs",
    ranks=2,
    backend="jax",
    sweep={"decisions": ["jax_worlds:is_intact"]},
    by_hand=faults.returns(rank=1, value=False, at=at.call("jax_worlds:is_intact")),
)
def test_last_checkpoint_if_the_buffers_are_intact(world) -> None:
    """Whether a last checkpoint is gathered is decided by each process from its own buffers.

    Source: https://github.com/deepqmc/deepqmc/pull/248
    """
    mean_of(1.0)
    if is_intact():  # <- latent
        mean_of(2.0)


def all_agree(name: str, is_well: bool) -> bool:
    """Return whether all processes are well; each asks the coordination service for all answers."""
    client = global_state.client
    client.key_value_set(f"{name}/{jax.process_index()}", str(int(is_well)))
    answers = [
        client.blocking_key_value_get(f"{name}/{index}", LONG_MS)
        for index in range(jax.process_count())
    ]
    return all(answer == "1" for answer in answers)


@robust(ranks=2, backend="jax")
def test_all_agree_on_the_folder(world, shared_tmp_path) -> None:
    """The primary makes the folder; whether it could is told to all before they meet."""
    is_well = True
    if jax.process_index() == 0:
        try:
            (shared_tmp_path / "checkpoint.orbax-tmp").mkdir(exist_ok=True)
        except OSError:
            is_well = False
    if not all_agree("made", is_well):
        raise RuntimeError("the folder could not be made")
    meet_at("made")


@robust(
    ranks=2,
    backend="jax",
    sweep={"decisions": ["jax_worlds:is_intact"]},
)
def test_all_agree_on_another_step(world) -> None:
    """All stop as soon as one process has no batch left, or says that it is not well."""
    own = batches()
    for step in range(10):
        batch = next(own, None)
        if not all_agree(f"step {step}", batch is not None and is_intact()):
            break
        meet_at(f"step {step}")
