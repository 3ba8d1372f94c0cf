"""Programs of accelerate that look like hangs for a while, and end well."""

from __future__ import annotations

import time

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from expectation import innocent
from hang_accelerate import make_trainer, train_step

LATE_S = 3.0
"""Longer than a proof takes."""


@innocent(ranks=3, backend="gloo")
def test_the_main_process_downloads_first(world) -> None:
    """The others wait in main_process_first, as they should."""
    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            time.sleep(LATE_S)


@innocent(ranks=2, backend="gloo")
def test_uneven_inputs_are_joined(world) -> None:
    """One process has two batches more, and DDP's join lets it finish."""
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(4, 1))
    with model.join():
        for _ in range(2 + 2 * world.rank):
            time.sleep(0.8)
            train_step(accelerator, model, torch.ones(2, 4))


@innocent(ranks=3, backend="gloo")
def test_texts_are_gathered_after_slow_inference(world) -> None:
    """Processes infer for different times before they gather."""
    accelerator = Accelerator(cpu=True)
    time.sleep(LATE_S * world.rank / 2)
    assert len(gather_object([accelerator.process_index])) == world.size


@innocent(ranks=2, backend="gloo")
def test_steps_go_on_after_a_slow_log(world) -> None:
    """A tracker answers one process late."""
    accelerator, model, optimizer, data = make_trainer()
    for step, batch in enumerate(data):
        train_step(accelerator, model, batch)
        optimizer.step()
        if step == 1 and world.rank == 1:
            time.sleep(LATE_S)


@innocent(ranks=3, backend="gloo")
def test_each_process_gathers_from_its_own_branch(world) -> None:
    """The same operations stand in different lines of the main process and the others."""
    accelerator = Accelerator(cpu=True)
    for _ in range(3):
        if accelerator.is_main_process:
            time.sleep(LATE_S / 3)
            texts = gather_object(["main"])
        else:
            texts = gather_object(["other"])
        assert texts == ["main", "other", "other"]
