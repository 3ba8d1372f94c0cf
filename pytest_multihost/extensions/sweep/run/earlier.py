"""Finds the result of the last earlier sweep of a test, and checks that it still says something."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.extensions.sweep.file_names import SWEEP_NAME
from pytest_multihost.extensions.sweep.made_with.code import file_digest
from pytest_multihost.extensions.sweep.made_with.comparison import because, differences
from pytest_multihost.extensions.sweep.record import read_sweep
from pytest_multihost.extensions.sweep.result import DisturbedRun, MadeWith, SweepResult


@dataclass(frozen=True, slots=True)
class EarlierSweep:
    """The last sweep of the same test with the same world.

    Attributes:
        result: The sweep.
        reason: Why its runs say nothing about the test as it is now; empty if they do.
    """

    result: SweepResult
    reason: str = ""

    @property
    def runs(self) -> tuple[DisturbedRun, ...]:
        """The runs that may be taken over."""
        return () if self.reason else self.result.runs


def earlier_sweep(
    artifacts: Path, result: SweepResult, made_with: MadeWith, root: Path
) -> EarlierSweep | None:
    """Return the last sweep of the same test with the same world; None if there is none.

    If the last one was made with other code or settings, the last of those that were not is
    returned, for example after a change has been undone.

    Args:
        result: The sweep that is about to begin.
        made_with: What its runs will depend on.
        root: pytest's rootdir.
    """
    found: list[SweepResult] = []
    for path in artifacts.glob(f"*/*/{SWEEP_NAME}"):
        with contextlib.suppress(MultihostError):
            found.append(read_sweep(path))
    same = [each for each in found if _world(each) == _world(result) and each.plan.disturbances]
    same.sort(key=lambda each: each.run_id, reverse=True)
    digest = partial(_digest, root)
    checked = [EarlierSweep(e, because(differences(e.made_with, made_with, digest))) for e in same]
    return next((each for each in checked if not each.reason), next(iter(checked), None))


def _digest(root: Path, name: str) -> str:
    return file_digest(root / name)


def _world(result: SweepResult) -> tuple[object, ...]:
    return result.nodeid, result.backend, result.world_size, result.seed
