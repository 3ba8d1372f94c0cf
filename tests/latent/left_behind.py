"""What a run has left that is wrong, as the fault beside a program shows: weights, files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist


def same_weights(model: torch.nn.Module) -> None:
    """Fail if the parameters and buffers of a model differ between ranks."""
    mine = {name: each.tolist() for name, each in model.state_dict().items()}
    found: list[Mapping[str, object]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, mine)
    assert all(each == found[0] for each in found), found


def all_load(files: Iterable[Path]) -> None:
    """Fail if a file is absent or torn."""
    for file in files:
        try:
            if file.suffix == ".pt":
                torch.load(file, weights_only=True)
            else:
                json.loads(file.read_text())
        except Exception as error:
            raise AssertionError(f"{file.name} does not load") from error
