"""Programs of Lightning that look like hangs for a while, and end well."""

from __future__ import annotations

import time

import torch
from expectation import innocent
from hang_lightning import Model, loader, make_trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader

LATE_S = 3.0
"""Longer than a proof takes."""


class Monitored(Model):
    """Logs a value that differs between processes."""

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        """Log a value that is best on one process and not on the other."""
        self.log("local", float(-self.current_epoch if self.global_rank else self.current_epoch))


@innocent(ranks=2, backend="gloo")
def test_processes_monitor_different_values(world, shared_tmp_path) -> None:
    """Lightning agrees on the best checkpoint although each process logs its own value."""
    best = ModelCheckpoint(shared_tmp_path, monitor="local", save_top_k=1)
    trainer = make_trainer(
        world, shared_tmp_path, callbacks=[best], enable_checkpointing=True, max_epochs=3
    )
    trainer.fit(Monitored(), loader(), loader(2))


class SlowEpoch(Callback):
    """Uploads on the main process at the end of the epoch."""

    def on_train_epoch_end(self, trainer, module) -> None:
        """Take a while on rank 0."""
        if trainer.is_global_zero:
            time.sleep(LATE_S)


@innocent(ranks=2, backend="gloo")
def test_the_main_process_uploads_between_epochs(world, tmp_path) -> None:
    """The other waits in the next epoch's first step."""
    trainer = make_trainer(world, tmp_path, callbacks=[SlowEpoch()], max_epochs=2)
    trainer.fit(Model(), loader())


class SlowSamples(torch.utils.data.Dataset):
    """Takes most of a second for a sample."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.7)
        return torch.ones(4)


@innocent(ranks=2, backend="gloo")
def test_a_loader_with_workers_is_slow(world, tmp_path) -> None:
    """Worker processes of the loader prepare for a while."""
    data = DataLoader(SlowSamples(), batch_size=2, num_workers=2)
    make_trainer(world, tmp_path).fit(Model(), data)
