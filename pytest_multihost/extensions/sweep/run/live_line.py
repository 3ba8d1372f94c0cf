"""Shows the progress of a sweep in a line on the terminal."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.pytest_plugin.live_display import overwrite
from pytest_multihost.core.report.live_line import ERASE, overlay
from pytest_multihost.extensions.sweep.result import Disturbance
from pytest_multihost.extensions.sweep.words import plural, point_text

TICK_S = 0.5
"""The time between updates of the line."""


@dataclass(slots=True)
class SweepLine:
    """A line with the progress of a sweep; shown only on a terminal that is not a CI log."""

    config: pytest.Config
    _shown_s: float = 0.0
    _is_shown: bool = False

    def show(self, now_s: float, text: str) -> None:
        """Show `text`, if an update is due."""
        if now_s >= self._shown_s + TICK_S:
            self._shown_s = now_s
            is_shown = overwrite(self.config, lambda width: overlay(text, width))
            self._is_shown = self._is_shown or is_shown

    def close(self) -> None:
        """Erase the line."""
        if self._is_shown:
            overwrite(self.config, lambda _: ERASE)


def sweep_progress(
    done: int,
    planned: int,
    *,
    weaknesses: int = 0,
    left_s: float | None = None,
    doing: Disturbance | None = None,
) -> str:
    """Return "swept 12 of 430, 1 weakness, 31 s left; now late: rank 0, rename of */tmp" or so.

    Args:
        planned: The number of disturbances of the plan.
        weaknesses: The number of weaknesses found so far.
        left_s: Seconds until the plan or the budget ends; None if unknown.
        doing: The disturbance of the world that was started last.
    """
    parts = [f"swept {done} of {planned}"]
    if weaknesses:
        parts.append(plural(weaknesses, "weakness"))
    if left_s is not None:
        parts.append(f"{left_s:.0f} s left")
    if doing is None:
        return ", ".join(parts)
    ranks = doing.fault.ranks
    who = PLAIN.of(ranks) if isinstance(ranks, tuple) else str(ranks)
    return f"{', '.join(parts)}; now {doing.family}: {who}, {point_text(doing.fault.at)}"
