"""Judge a run with one disturbance."""

from __future__ import annotations

from pytest_multihost.blame import Judgement
from pytest_multihost.model.sweep import Disturbance, DisturbedRun


def judge_run(
    disturbance: Disturbance, judged: Judgement, *, token: str = "", directory: str | None = None
) -> DisturbedRun:
    """Say what a disturbance has brought about.

    Args:
        disturbance: What was done; its fault is the only one that is not the test's own.
        judged: The world, judged as that of any test.
        token: Repeats the run.
        directory: The run's artifacts, relative to the artifacts directory.
    """
    raise NotImplementedError
