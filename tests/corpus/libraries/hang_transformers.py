"""transformers' Trainer and datasets: one process leaves the common path."""

from __future__ import annotations

import time
from typing import Any

import datasets
import torch
from datasets.distributed import split_dataset_by_node
from expectation import hang
from mishaps import FOREVER_S
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
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


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_one_process_stops_early(world, shared_tmp_path) -> None:
    """Early stopping by a metric that differs between processes.

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


@hang("mismatch", ranks=3, backend="gloo", culprits=[0], by=["mismatch", "proof"])
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


@hang("finished", ranks=3, backend="gloo", culprits=[1, 2], waiting=[0])
def test_a_barrier_at_the_end_on_the_main_process_only(world, shared_tmp_path) -> None:
    """A barrier below `if is_world_process_zero`.

    Source: https://github.com/EleutherAI/sparsify/pull/5
    """
    make_trainer(shared_tmp_path, BarrierOnMain).train()


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_a_filter_leaves_shards_of_different_lengths(world) -> None:
    """A filter after split_dataset_by_node leaves one process with fewer batches.

    Source: https://github.com/huggingface/datasets/issues/6719
    """
    whole = datasets.Dataset.from_dict({"x": list(range(16))}).to_iterable_dataset(num_shards=2)
    mine = split_dataset_by_node(whole, world.rank, world.size).filter(lambda row: row["x"] < 12)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for batch in DataLoader(mine.with_format("torch"), batch_size=2):
        model(batch["x"].float()[:, None]).sum().backward()


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_shards_do_not_divide_by_the_number_of_processes(world) -> None:
    """An iterable dataset gives one process fewer samples.

    Source: https://github.com/huggingface/datasets/issues/6437
    """
    whole = datasets.Dataset.from_dict({"x": list(range(14))}).to_iterable_dataset()
    mine = split_dataset_by_node(whole, world.rank, world.size)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for batch in DataLoader(mine.with_format("torch"), batch_size=1):
        model(batch["x"].float()[:, None]).sum().backward()
