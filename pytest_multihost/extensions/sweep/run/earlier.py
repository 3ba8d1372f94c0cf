"""Finds the result of the last earlier sweep of a test."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.extensions.sweep.file_names import SWEEP_NAME
from pytest_multihost.extensions.sweep.record import read_sweep
from pytest_multihost.extensions.sweep.result import SweepResult


def earlier_result(artifacts: Path, result: SweepResult) -> SweepResult | None:
    """Return the last sweep of the same test with the same world.

    Args:
        result: The sweep that is about to begin.
    """
    found: list[SweepResult] = []
    for path in artifacts.glob(f"*/*/{SWEEP_NAME}"):
        with contextlib.suppress(MultihostError):
            found.append(read_sweep(path))
    same = [each for each in found if _world(each) == _world(result) and each.plan.disturbances]
    return max(same, key=lambda each: each.run_id, default=None)


def _world(result: SweepResult) -> tuple[object, ...]:
    return result.nodeid, result.backend, result.world_size, result.seed
