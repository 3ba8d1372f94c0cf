"""Programs of Lightning in which one process leaves the common path."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import lightning
import torch
from expectation import hang
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only
from mishaps import FOREVER_S
from torch.utils.data import DataLoader


class Environment(LightningEnvironment):
    """Says that ranks and process group are there already."""

    creates_processes_externally = True

    def __init__(self, world: Any) -> None:  # noqa: ANN401 - the fixture
        super().__init__()
        self._world = world

    def world_size(self) -> int:
        return self._world.size

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return self._world.rank

    def node_rank(self) -> int:
        return 0


class Model(lightning.LightningModule):
    """One linear layer, with hooks for tests to fill."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        """Return a loss."""
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        """Log the loss of all processes."""
        self.log("loss", self.layer(batch).sum(), on_step=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(samples: int = 8) -> DataLoader:
    """Return a loader that is as long on each process, whatever the sampler."""
    return DataLoader([torch.ones(4) for _ in range(samples)], batch_size=2)


def make_trainer(world: Any, path: Any, **arguments: Any) -> lightning.Trainer:  # noqa: ANN401
    """Return a trainer of all ranks of the world."""
    defaults = {
        "max_epochs": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
    }
    strategy = DDPStrategy(
        cluster_environment=Environment(world),
        process_group_backend="gloo",
        timeout=timedelta(minutes=30),
    )
    return lightning.Trainer(
        accelerator="cpu",
        devices=world.size,
        strategy=strategy,
        default_root_dir=path,
        **(defaults | arguments),
    )


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0], waits_at=".fit(Model()")
def test_one_process_has_one_batch_less(world, tmp_path) -> None:
    """The loaders differ in length: one process trains on while the other ends its epoch.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/20404
    """
    make_trainer(world, tmp_path).fit(Model(), loader(8 - 2 * world.rank))


class LogEachStep(Model):
    """Synchronises a value in each step of its validation."""

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        """Log for the step only."""
        loss = self.layer(batch).sum()
        self.log("loss", loss, on_step=True, on_epoch=False, sync_dist=True)


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0], waits_at='self.log("loss"')
def test_one_process_has_fewer_validation_batches(world, tmp_path) -> None:
    """Validation loaders of different lengths meet in a log that synchronises each step.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/20561
    """
    data = loader(8 - 4 * world.rank)
    make_trainer(world, tmp_path).validate(LogEachStep(), data, verbose=False)


@hang(
    "died",
    ranks=2,
    backend="gloo",
    culprits=[0],
    waiting=[1],
    by=["exit"],
    where='self.log("loss", self.layer(batch).sum()',
)
def test_one_process_ends_its_validation_while_the_other_logs(world, tmp_path) -> None:
    """What one reduces for the epoch meets what the other reduces for a step: gloo aborts.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/20561
    """
    make_trainer(world, tmp_path).validate(Model(), loader(8 - 4 * world.rank), verbose=False)


class ValidateOnMain(Model):
    """Logs in the validation of the main process alone."""

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        """Log a synchronised value on one process."""
        if self.global_rank == 0:
            self.log("accuracy", self.layer(batch).mean(), on_step=True, sync_dist=True)


@hang(
    "finished",
    ranks=3,
    backend="gloo",
    culprits=[1, 2],
    waiting=[0],
    waits_at='self.log("accuracy"',
)
def test_only_the_main_process_logs_in_its_validation(world, tmp_path) -> None:
    """self.log(sync_dist=True) below `if global_rank == 0`.

    Source: https://github.com/dvl-tum/center-group/pull/2
    """
    make_trainer(world, tmp_path).validate(ValidateOnMain(), loader(), verbose=False)


class LogOnMain(Model):
    """Logs on the main process alone."""

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        """Log a synchronised value on one process."""
        loss = self.layer(batch).sum()
        if self.global_rank == 0 and index == 1:
            self.log("loss", loss, sync_dist=True)
        return loss


@hang(
    "mismatch",
    ranks=3,
    backend="gloo",
    culprits=[0],
    by=["mismatch", "raise", "proof"],
    outcome=["hung", "failed"],
    where='self.log("loss", loss, sync_dist=True)',
    sides={(0,): 'self.log("loss", loss, sync_dist=True)', (1, 2): ".fit(LogOnMain()"},
)
def test_only_the_main_process_logs_a_synchronised_value(world, tmp_path) -> None:
    """Its all_reduce of one value meets the others' all_reduce of gradients.

    Source: https://github.com/Lightning-AI/pytorch-lightning/pull/19917
    """
    make_trainer(world, tmp_path).fit(LogOnMain(), loader())


class SaveOnMain(Callback):
    """Saves a checkpoint on the main process alone."""

    @rank_zero_only
    def on_train_epoch_end(self, trainer: lightning.Trainer, module: Model) -> None:
        """Save; all processes would have to."""
        trainer.save_checkpoint(f"{trainer.default_root_dir}/last.ckpt")


@hang(
    "finished",
    ranks=3,
    backend="gloo",
    culprits=[1, 2],
    waiting=[0],
    waits_at="trainer.save_checkpoint(",
)
def test_only_the_main_process_saves_a_checkpoint(world, tmp_path) -> None:
    """trainer.save_checkpoint ends with a barrier and was called with rank_zero_only.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/10947
    """
    make_trainer(world, tmp_path, callbacks=[SaveOnMain()]).fit(Model(), loader())


class SlowStep(Model):
    """One process is stuck in its training step."""

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        """Never come back from the third step of rank 1."""
        if index == 2 and self.global_rank == 1:
            time.sleep(FOREVER_S)
        return self.layer(batch).sum()


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_one_process_is_stuck_in_its_training_step(world, tmp_path) -> None:
    """The others wait in the gradients' all_reduce.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/19045
    """
    make_trainer(world, tmp_path).fit(SlowStep(), loader())


class StopAlone(Callback):
    """Stops one process by a value that only it has seen."""

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        """Stop rank 2 after two batches."""
        if trainer.global_rank == 2 and trainer.global_step == 2:
            trainer.should_stop = True


@hang(
    "finished",
    ranks=3,
    backend="gloo",
    culprits=[2],
    waiting=[0, 1],
    waits_at="make_trainer(world, tmp_path, callbacks=[StopAlone()]",
)
def test_one_process_stops_early(world, tmp_path) -> None:
    """should_stop is set on one process and never agreed on; fit() ends without a collective.

    Source: https://github.com/huggingface/transformers/issues/17478
    """
    make_trainer(world, tmp_path, callbacks=[StopAlone()], max_epochs=3).fit(Model(), loader())
