"""Programs of accelerate in which one process leaves the common path."""

from __future__ import annotations

import time

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from expectation import hang
from mishaps import FOREVER_S
from torch.utils.data import DataLoader


def make_trainer(samples: int = 16) -> tuple[Accelerator, torch.nn.Module, object, DataLoader]:
    """Return an accelerator with a small model, its optimizer and a data loader."""
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader([torch.ones(4) for _ in range(samples)], batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    return accelerator, model, optimizer, data


def train_step(accelerator: Accelerator, model: torch.nn.Module, batch: torch.Tensor) -> None:
    """Do one forward and backward pass."""
    accelerator.backward(model(batch).sum())


@hang(
    "finished",
    ranks=4,
    backend="gloo",
    culprits=[1, 2, 3],
    waiting=[0],
    waits_at="accelerator.gather_for_metrics(",
)
def test_predictions_are_gathered_by_the_main_process_only(world) -> None:
    """gather_for_metrics stands below `if is_main_process`.

    Source: https://github.com/huggingface/accelerate/issues/2785
    """
    accelerator, model, _, data = make_trainer()
    for batch in data:
        predictions = model(batch)
    if accelerator.is_main_process:
        accelerator.gather_for_metrics(predictions)


@hang(
    "finished", ranks=3, backend="gloo", culprits=[1, 2], waiting=[0], waits_at="gather_object([f"
)
def test_texts_are_gathered_by_the_main_process_only(world) -> None:
    """gather_object stands below `if is_main_process`.

    Source: https://github.com/huggingface/accelerate/issues/2733
    """
    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process:
        gather_object([f"text of {accelerator.process_index}"])


@hang(
    "finished",
    ranks=4,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2, 3],
    waits_at="accelerator.wait_for_everyone()",
)
def test_main_process_saves_and_never_meets_the_others(world, tmp_path) -> None:
    """The main process saves; only the others call wait_for_everyone.

    Source: https://github.com/huggingface/accelerate/issues/2690
    """
    accelerator, model, _, _ = make_trainer()
    if accelerator.is_main_process:
        torch.save(accelerator.get_state_dict(model), tmp_path / "model.pt")
    else:
        accelerator.wait_for_everyone()


@hang(
    "finished",
    ranks=2,
    backend="gloo",
    culprits=[1],
    waiting=[0],
    waits_at="accelerator.backward(",
)
def test_bad_batches_are_skipped_by_one_process(world) -> None:
    """One process skips a bad batch, so its last backward pass never happens.

    Source: https://github.com/huggingface/accelerate/issues/2258
    """
    accelerator, model, optimizer, data = make_trainer()
    for step, batch in enumerate(data):
        if step == 2 and accelerator.process_index == 1:
            continue
        train_step(accelerator, model, batch)
        optimizer.step()


@hang(
    "finished",
    ranks=2,
    backend="gloo",
    culprits=[0],
    waiting=[1],
    waits_at="accelerator.backward(",
)
def test_joining_uneven_inputs_has_no_effect_on_cpus(world) -> None:
    """join_uneven_inputs warns that it does nothing here, and one process has two batches more.

    Source: https://github.com/huggingface/accelerate/pull/820
    """
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(4, 1))
    with accelerator.join_uneven_inputs([model]):
        for _ in range(2 + 2 * world.rank):
            train_step(accelerator, model, torch.ones(2, 4))


@hang(
    "straggler",
    ranks=4,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2, 3],
    where="time.sleep(FOREVER_S)",
)
def test_main_process_first_reads_for_ever(world) -> None:
    """The main process prepares the data under main_process_first and never leaves.

    Source: https://github.com/huggingface/accelerate/issues/1752
    """
    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            time.sleep(FOREVER_S)


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[1],
    by=["mismatch", "proof"],
    where="accelerator.gather(torch.ones(3))",
    sides={(1,): "accelerator.gather(torch.ones(3))", (0, 2): "accelerator.backward("},
)
def test_one_process_evaluates_while_the_others_train(world) -> None:
    """Early stopping by a local loss: one process gathers metrics, the others go on training.

    Source: https://github.com/huggingface/transformers/issues/17478
    """
    accelerator, model, optimizer, data = make_trainer(24)
    for step, batch in enumerate(data):
        if step == 2 and accelerator.process_index == 1:
            accelerator.gather(torch.ones(3))
        train_step(accelerator, model, batch)
        optimizer.step()


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1],
    where="time.sleep(FOREVER_S)",
)
def test_a_tracker_blocks_one_process_between_steps(world) -> None:
    """A logging service does not answer one process.

    Source: https://github.com/huggingface/accelerate/issues/1752
    """
    accelerator, model, optimizer, data = make_trainer(24)
    for step, batch in enumerate(data):
        train_step(accelerator, model, batch)
        optimizer.step()
        if step == 1 and accelerator.process_index == 2:
            time.sleep(FOREVER_S)


@hang(
    "finished",
    ranks=4,
    backend="gloo",
    culprits=[1, 2, 3],
    waiting=[0],
    waits_at="broadcast_object_list([True])",
)
def test_the_decision_is_broadcast_by_the_main_process_only(world) -> None:
    """The main process broadcasts whether to stop; the others return early.

    Source: https://github.com/EleutherAI/sparsify/pull/5
    """
    accelerator = Accelerator(cpu=True)
    if not accelerator.is_main_process:
        return
    broadcast_object_list([True])


@hang(
    "mismatch",
    ranks=2,
    backend="gloo",
    by=["mismatch", "proof"],
    waits_at="accelerator.gather(torch.ones(3))",
    sides={(0,): "accelerator.gather(torch.ones(3))", (1,): "accelerator.backward("},
)
def test_one_of_two_processes_evaluates(world) -> None:
    """A progress bar that only the main process has decides when to evaluate: one against one.

    Source: https://github.com/huggingface/transformers/issues/31532
    """
    accelerator, model, optimizer, data = make_trainer()
    for step, batch in enumerate(data):
        if step == 2 and accelerator.is_main_process:
            accelerator.gather(torch.ones(3))
        train_step(accelerator, model, batch)
        optimizer.step()
