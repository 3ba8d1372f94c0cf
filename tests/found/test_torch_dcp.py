"""Distributed checkpoints of torch, as its tutorial begins."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.multihost(ranks=2, backend="gloo")


def make_state() -> dict[str, object]:
    """Return the state of a small model and its optimizer."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def test_save(world, shared_tmp_path) -> None:
    """All ranks save."""
    dcp.save(make_state(), checkpoint_id=shared_tmp_path / "step-1")


def test_save_and_load(world, shared_tmp_path) -> None:
    """All ranks save, then load into another state."""
    dcp.save(make_state(), checkpoint_id=shared_tmp_path / "step-1")
    dcp.load(make_state(), checkpoint_id=shared_tmp_path / "step-1")


def test_async_save(world, shared_tmp_path) -> None:
    """All ranks save in the background, and await it."""
    dcp.async_save(make_state(), checkpoint_id=shared_tmp_path / "step-1").result()


def test_training_resumes(world, shared_tmp_path) -> None:
    """A model is saved, made anew, and trained on."""
    dcp.save(make_state(), checkpoint_id=shared_tmp_path / "step-1")
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=shared_tmp_path / "step-1")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    model(torch.ones(2, 4)).sum().backward()
