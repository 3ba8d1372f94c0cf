"""DeepSpeed with a process that is late."""

from __future__ import annotations

import time

from expectation import innocent
from hang_deepspeed import make_engine, train_step

LATE_S = 3.0
"""Longer than a proof takes."""


@innocent(ranks=2, backend="gloo")
def test_one_process_is_late_between_steps(world, shared_tmp_path) -> None:
    """The other waits for its gradients, and all save a checkpoint at the end."""
    engine = make_engine()
    train_step(engine)
    time.sleep(LATE_S * world.rank)
    train_step(engine)
    engine.save_checkpoint(str(shared_tmp_path))


@innocent(ranks=2, backend="gloo")
def test_one_process_is_late_under_zero_3(world) -> None:
    """The other waits for its share of the parameters."""
    engine = make_engine(3)
    train_step(engine)
    time.sleep(LATE_S * world.rank)
    train_step(engine)
