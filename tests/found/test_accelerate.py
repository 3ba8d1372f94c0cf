"""accelerate, as its quick tour begins."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.multihost(ranks=2, backend="gloo")


def make_training(accelerator: Accelerator) -> tuple:
    """Return a prepared model, optimizer and loader."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.ones(16, 4), torch.ones(16, 1))
    return accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2))


def train(accelerator: Accelerator, model, optimizer, loader) -> None:
    """Train for an epoch."""
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()


def test_an_epoch(world) -> None:
    """The quick tour's loop."""
    accelerator = Accelerator(cpu=True)
    train(accelerator, *make_training(accelerator))


def test_evaluation_gathers_metrics(world) -> None:
    """Predictions of all processes are gathered."""
    accelerator = Accelerator(cpu=True)
    model, _, loader = make_training(accelerator)
    with torch.no_grad():
        found = [accelerator.gather_for_metrics((model(x), y)) for x, y in loader]
    assert len(found) == 4


def test_state_is_saved_and_loaded(world, shared_tmp_path) -> None:
    """save_state and load_state between two epochs."""
    accelerator = Accelerator(cpu=True)
    training = make_training(accelerator)
    train(accelerator, *training)
    accelerator.save_state(str(shared_tmp_path / "state"))
    accelerator.wait_for_everyone()
    accelerator.load_state(str(shared_tmp_path / "state"))
    train(accelerator, *training)


def test_checkpoints_are_rotated(world, shared_tmp_path) -> None:
    """Automatic names, of which the last two are kept."""
    project = ProjectConfiguration(
        project_dir=str(shared_tmp_path), automatic_checkpoint_naming=True, total_limit=2
    )
    accelerator = Accelerator(cpu=True, project_config=project)
    training = make_training(accelerator)
    for _ in range(3):
        train(accelerator, *training)
        accelerator.save_state()


def test_the_model_is_saved(world, shared_tmp_path) -> None:
    """save_model by all, as the guide has it."""
    accelerator = Accelerator(cpu=True)
    model, _, _ = make_training(accelerator)
    accelerator.wait_for_everyone()
    accelerator.save_model(model, str(shared_tmp_path / "model"))
    accelerator.wait_for_everyone()


def test_the_main_process_prepares_data(world, shared_tmp_path) -> None:
    """main_process_first around a cache, as in the examples."""
    accelerator = Accelerator(cpu=True)
    cache = shared_tmp_path / "data.pt"
    with accelerator.main_process_first():
        if not cache.exists():
            torch.save(torch.ones(4), cache)
        data = torch.load(cache)
    assert accelerator.reduce(data).sum() > 0


def test_the_newest_state_is_loaded(world, shared_tmp_path) -> None:
    """A restart goes on from the newest of two checkpoints with automatic names."""
    project = ProjectConfiguration(
        project_dir=str(shared_tmp_path), automatic_checkpoint_naming=True
    )
    accelerator = Accelerator(cpu=True, project_config=project)
    training = make_training(accelerator)
    for _ in range(2):
        train(accelerator, *training)
        accelerator.save_state()
    accelerator.wait_for_everyone()
    project = ProjectConfiguration(
        project_dir=str(shared_tmp_path), automatic_checkpoint_naming=True, iteration=2
    )
    accelerator = Accelerator(cpu=True, project_config=project)
    model, optimizer, loader = make_training(accelerator)
    accelerator.load_state()
    train(accelerator, model, optimizer, loader)
    world.same("weights", model.module)
