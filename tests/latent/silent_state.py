"""Ranks go on from other values than the others, and no rank fails or waits."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch._dynamo  # wrapping a model imports it, for seconds
import torch.distributed as dist
from agreement import all_or_none, written_by_primary
from expectation import latent
from left_behind import same_weights
from torch.nn.parallel import DistributedDataParallel

from pytest_multihost import at, faults


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))


@latent(
    family="differs",
    outcome="wrong",
    names="step",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=1, seconds=5, path="*/ckpt/*"),
)
def test_each_rank_resumes_from_the_step_that_it_lists(world, shared_tmp_path) -> None:
    """A rank that does not see the newest checkpoint trains on from an older step.

    Source: https://github.com/mosaicml/composer/pull/2146
    """
    written_by_primary(world, shared_tmp_path, {f"ckpt/step-{step}": "" for step in (1, 2)})
    found = [int(file.name[5:]) for file in shared_tmp_path.glob("ckpt/step-*")]  # <- latent
    step = max(found, default=0)  # <- latent
    for _ in range(2):
        meet()
        step += 1
    world.same("step", step)


def make_linear() -> DistributedDataParallel:
    """Return a small model, the same on all ranks."""
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Linear(2, 1))


@pytest.fixture
def linear(world) -> DistributedDataParallel:
    """A small model, the same on all ranks."""
    return make_linear()


def inputs_of(rank: int, step: int) -> torch.Tensor:
    """Return this rank's batch."""
    return torch.full((3, 2), 1.0 + rank + step)


def overflows(loss: float) -> bool:
    """Return whether a loss is too large for the scale."""
    return not math.isfinite(loss) or loss > 1e6  # <- latent


@latent(
    family="differs",
    outcome="wrong",
    ranks=2,
    backend="gloo",
    by_hand=faults.returns(rank=1, value=True, at=at.call("silent_state:overflows", nth=2)),
    seen_by=same_weights,
)
def test_each_rank_has_a_scale_of_its_own(world, linear) -> None:
    """Gradients are averaged with the scale of each rank in them, and divided by its own.

    Source: https://github.com/pytorch/pytorch/issues/136009
    """
    scale = 4.0
    for step in range(3):
        linear.zero_grad()
        loss = linear(inputs_of(world.rank, step)).mean()
        if overflows(loss.item()):  # <- latent
            scale /= 2
        (loss * scale).backward()
        for weights in linear.parameters():
            weights.data -= 0.01 * weights.grad / scale


def newest(folder: Path) -> Path | None:
    """Return the newest weights that this rank sees."""
    files = sorted(folder.glob("weights-*.pt"))  # <- latent
    return files[-1] if files else None


@latent(
    family="differs",
    outcome="wrong",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=2, seconds=5, path="*/weights-2.pt"),
    seen_by=same_weights,
)
def test_weights_are_loaded_behind_the_wrapper(world, shared_tmp_path, linear) -> None:
    """DDP makes weights equal when it wraps a model; each rank loads its newest ones later.

    Source: https://github.com/intelligent-machine-learning/dlrover/issues/907
    """
    dist.barrier()
    with all_or_none("saving"):
        if world.is_primary:
            for step in (1, 2):
                weights = {"weight": torch.full((1, 2), float(step)), "bias": torch.zeros(1)}
                torch.save(weights, shared_tmp_path / f"weights-{step}.pt")
    file = newest(shared_tmp_path)  # <- latent
    with all_or_none("loading"):
        if file is not None:  # <- latent
            linear.module.load_state_dict(torch.load(file, weights_only=True))
    linear(inputs_of(world.rank, 0)).sum().backward()
    for each in linear.parameters():
        each.data -= 0.01 * each.grad


class Normalized(torch.nn.Module):
    """A linear layer that takes a mean from its inputs first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.head = torch.nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one number for each row."""
        return self.head(inputs - self.mean)


@pytest.fixture
def normalized(world) -> DistributedDataParallel:
    """A model whose buffers stay as each rank has set them."""
    torch.manual_seed(0)
    return DistributedDataParallel(Normalized(), broadcast_buffers=False)


@latent(
    family="differs",
    outcome="wrong",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=1, seconds=5, path="*/statistics.json"),
    seen_by=same_weights,
)
def test_statistics_are_read_into_buffers(world, shared_tmp_path, normalized) -> None:
    """Buffers are not broadcast, and a rank that finds no statistics keeps the mean of zero.

    Source: https://github.com/facebookresearch/ClassyVision/pull/304 (buffers that differ)
    """
    written_by_primary(world, shared_tmp_path, {"statistics.json": "[0.5, 0.25]"})
    file = shared_tmp_path / "statistics.json"
    if os.path.exists(file):  # <- latent  # noqa: PTH110 - False on any error
        normalized.module.mean = torch.tensor(json.loads(file.read_text()))
    for step in range(2):
        normalized.zero_grad()
        normalized(inputs_of(world.rank, step)).sum().backward()
        for weights in normalized.parameters():
            weights.data -= 0.01 * weights.grad


@latent(
    family="differs",
    outcome="wrong",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=2, seconds=5, path="*/optimizer.pt"),
    seen_by=same_weights,
)
def test_rank_without_a_state_starts_its_optimizer_anew(world, shared_tmp_path, linear) -> None:
    """The momentum of a rank that finds no state is zero, so its weights leave the others'.

    Source: https://github.com/ByteDance-Seed/VeOmni/pull/1125 (a rank that resumes without its
    state, and says nothing)
    """
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.01, momentum=0.9)
    linear(inputs_of(world.rank, 0)).sum().backward()
    optimizer.step()
    file = shared_tmp_path / "optimizer.pt"
    dist.barrier()
    with all_or_none("saving"):
        if world.is_primary:
            torch.save(optimizer.state_dict(), file)
    resumed = torch.optim.SGD(linear.parameters(), lr=0.01, momentum=0.9)
    with all_or_none("loading"):
        if os.path.exists(file):  # <- latent  # noqa: PTH110 - False on any error
            resumed.load_state_dict(torch.load(file, weights_only=True))
        else:
            print("no state of the optimizer in", file)
    linear(inputs_of(world.rank, 1)).sum().backward()
    resumed.step()


class Rotary(torch.nn.Module):
    """A layer with one buffer for each type of attention."""

    def __init__(self, types: Mapping[str, float]) -> None:
        super().__init__()
        for name in set(types):  # <- latent
            self.register_buffer(name, torch.full((2,), types[name]))  # <- latent
        self.head = torch.nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one number for each row."""
        return self.head(inputs * self.full + self.sliding)


TYPES = {"full": 1.0, "sliding": 2.0, "chunked": 3.0, "linear": 4.0, "sparse": 5.0}


@pytest.fixture
def rotary(world) -> DistributedDataParallel:
    """A model with buffers in the order of a set."""
    torch.manual_seed(0)
    return DistributedDataParallel(Rotary(TYPES))


@latent(
    family="differs",
    outcome="wrong",
    names="buffers of DistributedDataParallel #1",
    ranks=3,
    backend="gloo",
    by_hand=faults.hash_seed(rank="all", seed=None),
    seen_by=same_weights,
)
def test_buffers_are_registered_in_the_order_of_a_set(world, rotary) -> None:
    """DDP broadcasts buffers by their position, so a rank with another order swaps them.

    Source: https://github.com/huggingface/transformers/pull/48162
    """
    rotary(inputs_of(world.rank, 0)).sum().backward()
    for weights in rotary.parameters():
        weights.data -= 0.01 * weights.grad
