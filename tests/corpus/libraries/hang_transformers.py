"""transformers' Trainer: one process leaves the common path."""

from __future__ import annotations

import time
from typing import Any

import torch
from expectation import hang
from mishaps import FOREVER_S
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(torch.nn.Module):
    """A model that returns a loss, as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        """Return loss and predictions."""
        out = self.layer(x)
        return {"loss": out.sum(), "logits": out}


def samples(number: int = 24) -> list[dict[str, torch.Tensor]]:
    """Return samples."""
    return [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(number)]


def make_trainer(path: Any, callback: type[TrainerCallback], **arguments: Any) -> Trainer:  # noqa: ANN401
    """Return a trainer of all ranks."""
    settings = TrainingArguments(
        output_dir=str(path),
        use_cpu=True,
        per_device_train_batch_size=2,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        ddp_backend="gloo",
        **arguments,
    )
    return Trainer(
        Model(),
        settings,
        train_dataset=samples(),
        eval_dataset=samples(6),
        callbacks=[callback()],
    )


class StopAlone(TrainerCallback):
    """One process stops early by a metric that only it has seen."""

    def on_step_end(self, args, state, control, **_: object) -> None:
        """Stop rank 1 after its second step."""
        if args.process_index == 1 and state.global_step == 2:
            control.should_training_stop = True


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[1],
    by=["mismatch", "proof"],
    where="make_trainer(shared_tmp_path, StopAlone).train()",
    sides={
        (1,): "self._finalize_training(",
        (0, 2): "self._run_epoch(",
    },
)
def test_one_process_stops_early(world, shared_tmp_path) -> None:
    """Early stopping by a metric that differs: one process already counts its operations.

    The Trainer ends with an all_gather of what each process has computed, and the others are in
    the next step's all_reduce.

    Source: https://github.com/huggingface/transformers/issues/17478
    """
    make_trainer(shared_tmp_path, StopAlone).train()


class EvaluateOnMain(TrainerCallback):
    """The main process evaluates between two steps."""

    trainer: Trainer

    def on_step_end(self, args, state, control, **_: object) -> None:
        """Evaluate on rank 0 only."""
        if args.process_index == 0 and state.global_step == 2:
            self.trainer.evaluate()


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[0],
    by=["mismatch", "proof"],
    where="self.trainer.evaluate()",
    sides={(0,): "self.trainer.evaluate()", (1, 2): "trainer.train()"},
)
def test_the_main_process_evaluates_alone(world, shared_tmp_path) -> None:
    """evaluate() gathers predictions, and was called by rank 0 only.

    Source: https://github.com/huggingface/transformers/pull/1081
    """
    trainer = make_trainer(shared_tmp_path, EvaluateOnMain)
    EvaluateOnMain.trainer = trainer
    trainer.train()


class SlowCallback(TrainerCallback):
    """A callback that uploads and never ends on one process."""

    def on_step_end(self, args, state, control, **_: object) -> None:
        """Block rank 2."""
        if args.process_index == 2 and state.global_step == 2:
            time.sleep(FOREVER_S)


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1],
    where="time.sleep(FOREVER_S)",
)
def test_a_callback_blocks_one_process(world, shared_tmp_path) -> None:
    """The others wait in the gradients' all_reduce.

    Source: https://github.com/instructlab/training/pull/566
    """
    make_trainer(shared_tmp_path, SlowCallback).train()


class BarrierOnMain(TrainerCallback):
    """Waits for all processes, on the main process only."""

    def on_train_end(self, args, state, control, **_: object) -> None:
        """Meet in a barrier that only rank 0 enters."""
        if state.is_world_process_zero:
            torch.distributed.barrier()


@hang(
    "finished",
    ranks=3,
    backend="gloo",
    culprits=[1, 2],
    waiting=[0],
    waits_at="distributed.barrier()",
)
def test_a_barrier_at_the_end_on_the_main_process_only(world, shared_tmp_path) -> None:
    """A barrier below `if is_world_process_zero`.

    Source: https://github.com/EleutherAI/sparsify/pull/5
    """
    make_trainer(shared_tmp_path, BarrierOnMain).train()
