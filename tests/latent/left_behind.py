"""What a run has left that is wrong, as the fault beside a program shows: weights, files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def same_weights(fixtures: Mapping[str, Any]) -> None:
    """Fail if the parameters and buffers of the test's models differ between ranks."""
    models = [each for each in fixtures.values() if isinstance(each, torch.nn.Module)]
    mine = [{name: each.tolist() for name, each in one.state_dict().items()} for one in models]
    found: list[object] = [None] * dist.get_world_size()
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
