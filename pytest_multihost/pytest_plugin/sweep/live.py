"""The line on the terminal while a test is swept."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from pytest_multihost.pytest_private import (
    is_terminal,
    terminal_writer,
    uncaptured,
    write_uncounted,
)
from pytest_multihost.report.text import ERASE, overlay

TICK_S = 0.5
"""How often the line is updated."""


@dataclass(slots=True)
class SweepLine:
    """A line that says how far a sweep is; only on a terminal, and not where that is a CI log.

    Attributes:
        config: The run's.
    """

    config: pytest.Config
    _shown_s: float = 0.0
    _is_shown: bool = False

    def show(self, now_s: float, text: str) -> None:
        """Show `text`, if it is time."""
        if now_s >= self._shown_s + TICK_S:
            self._shown_s = now_s
            self._write(text)

    def close(self) -> None:
        """Take the line away."""
        if self._is_shown:
            self._write(None)

    def _write(self, text: str | None) -> None:
        writer = terminal_writer(self.config)
        if writer is None or os.environ.get("CI") or self.config.get_verbosity() < 0:
            return
        with uncaptured(self.config):
            if is_terminal(writer):
                self._is_shown = True
                width = writer.fullwidth - writer.width_of_current_line
                write_uncounted(writer, ERASE if text is None else overlay(text, width))
