"""DeepSpeed on CPU with gloo: checkpoints and steps that not all processes take part in."""

from __future__ import annotations

import time
from typing import Any

import deepspeed
import torch
from expectation import hang
from mishaps import FOREVER_S


def make_engine(stage: int = 1) -> Any:  # noqa: ANN401 - an untyped library
    """Return an engine with a small model."""
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings.pop("optimizer")
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=settings, dist_init_required=False
    )
    return engine


def train_step(engine: Any) -> None:  # noqa: ANN401
    """Do one step."""
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()


@hang("finished", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_only_the_main_process_saves_a_checkpoint(world, shared_tmp_path) -> None:
    """save_checkpoint must be called by all processes.

    Source: https://github.com/deepspeedai/DeepSpeed/issues/2993
    """
    engine = make_engine()
    train_step(engine)
    if world.is_primary:
        engine.save_checkpoint(str(shared_tmp_path))


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0], where="time.sleep")
def test_one_process_is_stuck_between_steps(world) -> None:
    """The other waits for its gradients.

    Source: https://github.com/deepspeedai/DeepSpeedExamples/issues/344
    """
    engine = make_engine()
    train_step(engine)
    if world.rank == 1:
        time.sleep(FOREVER_S)
    train_step(engine)


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_one_process_does_a_step_less(world) -> None:
    """Uneven batches under ZeRO.

    Source: https://github.com/pytorch/pytorch/issues/33148
    """
    engine = make_engine()
    for _ in range(3 if world.rank < 2 else 2):
        train_step(engine)
