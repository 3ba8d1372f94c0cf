"""DeepSpeed on CPU with gloo: checkpoints and steps that not all processes take part in."""

from __future__ import annotations

import time
from typing import Any

import deepspeed
import torch
from expectation import hang
from mishaps import FOREVER_S

deepspeed.ops.__compatible_ops__ = {}
"""None is compiled: that takes minutes, and is for ranks that share memory."""


def make_engine(stage: int = 1, model: torch.nn.Module | None = None) -> Any:  # noqa: ANN401
    """Return an engine with a small model; the library is untyped."""
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    model = model or torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=settings, dist_init_required=False
    )
    return engine


def train_step(engine: Any) -> None:  # noqa: ANN401
    """Do one step."""
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()


@hang(
    "finished",
    ranks=2,
    backend="gloo",
    culprits=[1],
    waiting=[0],
    waits_at="engine.save_checkpoint(",
)
def test_only_the_main_process_saves_a_checkpoint(world, shared_tmp_path) -> None:
    """save_checkpoint must be called by all processes.

    Source: https://github.com/deepspeedai/DeepSpeed/issues/2993
    """
    engine = make_engine()
    train_step(engine)
    if world.is_primary:
        engine.save_checkpoint(str(shared_tmp_path))


@hang(
    "straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0], where="time.sleep(FOREVER_S)"
)
def test_one_process_is_stuck_between_steps(world) -> None:
    """The other waits for its gradients.

    Source: https://github.com/deepspeedai/DeepSpeedExamples/issues/344
    """
    engine = make_engine()
    train_step(engine)
    if world.rank == 1:
        time.sleep(FOREVER_S)
    train_step(engine)


@hang(
    "finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], waits_at="engine.backward("
)
def test_one_process_does_a_step_less(world) -> None:
    """Uneven batches under ZeRO.

    Source: https://github.com/pytorch/pytorch/issues/33148
    """
    engine = make_engine()
    for _ in range(3 if world.rank < 2 else 2):
        train_step(engine)


class WithHead(torch.nn.Module):
    """A body, and a head that is called as often as a batch wants."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """Call the head so many times."""
        x = self.body(x)
        for _ in range(heads):
            x = self.head(x)
        return x


@hang("finished", ranks=2, backend="gloo", culprits=[0], waiting=[1], waits_at="x = self.head(x)")
def test_a_module_is_called_more_often_by_one_process(world) -> None:
    """Under ZeRO-3 each call gathers parameters.

    Source: https://github.com/deepspeedai/DeepSpeed/issues/7998
    """
    engine = make_engine(3, WithHead())
    with torch.no_grad():
        engine(torch.ones(2, 4), 1 + 2 * world.rank)


@hang(
    "deadlock",
    ranks=3,
    backend="gloo",
    waits_at="engine.save_checkpoint(",
    sides={(1,): "engine.save_checkpoint(", (0, 2): "engine.backward("},
)
def test_one_process_saves_while_the_others_train(world, shared_tmp_path) -> None:
    """The process with the best local loss saves a checkpoint, which is for all.

    Its barrier is one of the world, the others' all_reduce one of DeepSpeed's own group.

    Source: https://github.com/deepspeedai/DeepSpeed/issues/2993
    """
    engine = make_engine()
    for step in range(4):
        train_step(engine)
        if step == 1 and world.rank == 1:
            engine.save_checkpoint(str(shared_tmp_path))
