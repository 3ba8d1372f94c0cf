"""accelerate: what its examples show, on a small model, and the scripts that test it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from expectation import innocent

from pytest_multihost import World

accelerate: Any = pytest.importorskip("accelerate", reason="these are accelerate's own examples")

STEPS = 4


def trainer(**options: object) -> tuple[Any, ...]:
    """Return an accelerator, a model, its optimizer, and data, as the examples prepare them."""
    accelerator = accelerate.Accelerator(cpu=True, **options)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.ones(8 * STEPS, 4), batch_size=4)
    return accelerator, *accelerator.prepare(model, optimizer, data)


@innocent()
def test_gradient_accumulation(world: World) -> None:
    """As examples/by_feature/gradient_accumulation.py: reduced at each second step."""
    accelerator, model, optimizer, data = trainer(gradient_accumulation_steps=2)
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()


@innocent()
def test_checkpointing(world: World, shared_tmp_path: Path) -> None:
    """As examples/by_feature/checkpointing.py: saved after each epoch, and loaded."""
    accelerator, model, optimizer, data = trainer()
    for epoch in range(2):
        for batch in data:
            accelerator.backward(model(batch).sum())
            optimizer.step()
        accelerator.save_state(str(shared_tmp_path / f"epoch-{epoch}"))
    accelerator.load_state(str(shared_tmp_path / "epoch-0"))


@innocent()
def test_early_stopping(world: World) -> None:
    """As examples/by_feature/early_stopping.py: one process asks for it, and all hear of it."""
    accelerator, model, _, data = trainer()
    for step, batch in enumerate(data):
        accelerator.backward(model(batch).sum())
        if step == 1 and world.rank == 1:
            accelerator.set_trigger()
        if accelerator.check_trigger():
            break


@innocent()
def test_local_sgd(world: World) -> None:
    """As examples/by_feature/local_sgd.py: parameters are averaged at each second step."""
    accelerator, model, optimizer, data = trainer()
    local = importlib.import_module("accelerate.local_sgd").LocalSGD
    with local(accelerator=accelerator, model=model, local_sgd_steps=2, enabled=True) as averaged:
        for batch in data:
            accelerator.backward(model(batch).sum())
            optimizer.step()
            averaged.step()


@innocent(ranks=3)
def test_metrics_of_several_processes(world: World) -> None:
    """As examples/by_feature/multi_process_metrics.py: padded, and cut again."""
    accelerator = accelerate.Accelerator(cpu=True)
    data = torch.utils.data.DataLoader(torch.arange(20.0), batch_size=3)
    seen = [accelerator.gather_for_metrics(batch) for batch in accelerator.prepare(data)]
    assert len(torch.cat(seen)) == 20
    accelerator.wait_for_everyone()


@pytest.mark.parametrize("script", ["test_ops", "test_sync"])
@innocent()
def test_a_script_of_its_own(world: World, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `accelerate test` runs them."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    importlib.import_module(f"accelerate.test_utils.scripts.{script}").main()
