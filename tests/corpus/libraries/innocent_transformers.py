"""Programs of transformers' Trainer that look like hangs for a while, and end well."""

from __future__ import annotations

import time

from expectation import innocent
from hang_transformers import make_trainer
from transformers import TrainerCallback

LATE_S = 3.0
"""Longer than a proof takes."""


class SlowStep(TrainerCallback):
    """Takes long after one step on one process."""

    def on_step_end(self, args, state, control, **_: object) -> None:
        """Block rank 1 for a while."""
        if args.process_index == 1 and state.global_step == 2:
            time.sleep(LATE_S)


@innocent(ranks=2, backend="gloo")
def test_a_callback_of_the_trainer_is_slow(world, shared_tmp_path) -> None:
    """The other waits in the gradients' all_reduce, and it comes."""
    make_trainer(shared_tmp_path, SlowStep).train()


@innocent(ranks=2, backend="gloo")
def test_the_trainer_evaluates_and_saves(world, shared_tmp_path) -> None:
    """Evaluation and saving take part on all processes."""
    trainer = make_trainer(shared_tmp_path, TrainerCallback)
    trainer.train()
    trainer.evaluate()
    trainer.save_model(str(shared_tmp_path / "model"))
