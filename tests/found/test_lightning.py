"""Lightning's Trainer, as its introduction begins."""

from __future__ import annotations

import lightning as L  # noqa: N812 - as its documentation has it
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.multihost(ranks=2, backend="gloo")


class Model(L.LightningModule):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss."""
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Log the loss."""
        self.log("val_loss", self.layer(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), 0.1)


def make_loader() -> DataLoader:
    """Return a loader of four batches a process."""
    return DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=2)


def make_trainer(world, folder, **more: object) -> L.Trainer:
    """Return a trainer for two processes."""
    return L.Trainer(
        accelerator="cpu",
        devices=world.size,
        strategy="ddp",
        default_root_dir=folder,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )


def test_fit(world, shared_tmp_path) -> None:
    """Two epochs with the default checkpoint."""
    make_trainer(world, shared_tmp_path).fit(Model(), make_loader())


def test_fit_with_validation_and_the_best_checkpoint(world, shared_tmp_path) -> None:
    """Validation, the best checkpoint, and early stopping."""
    best = ModelCheckpoint(shared_tmp_path / "best", monitor="val_loss", save_top_k=1)
    stopping = EarlyStopping("val_loss", patience=1)
    trainer = make_trainer(world, shared_tmp_path, callbacks=[best, stopping])
    trainer.fit(Model(), make_loader(), make_loader())


def test_training_resumes(world, shared_tmp_path) -> None:
    """A second trainer goes on from the first one's checkpoint."""
    trainer = make_trainer(world, shared_tmp_path)
    trainer.fit(Model(), make_loader())
    trainer.save_checkpoint(shared_tmp_path / "last.ckpt")
    make_trainer(world, shared_tmp_path).fit(
        Model(), make_loader(), ckpt_path=shared_tmp_path / "last.ckpt"
    )


def test_training_goes_on_from_the_last(world, shared_tmp_path) -> None:
    """A second trainer goes on from the last checkpoint, wherever that is."""

    def make(max_epochs: int) -> L.Trainer:
        last = ModelCheckpoint(shared_tmp_path / "run", save_last=True)
        trainer = make_trainer(world, shared_tmp_path, callbacks=[last])
        trainer.fit_loop.max_epochs = max_epochs
        return trainer

    make(1).fit(Model(), make_loader())
    trainer, model = make(2), Model()
    trainer.fit(model, make_loader(), ckpt_path="last")
    world.same("step", trainer.global_step)
    world.same("weights", model)
