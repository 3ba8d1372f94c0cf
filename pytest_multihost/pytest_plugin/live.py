"""Show the live line on a terminal, and nothing anywhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TextIO

import pytest

from pytest_multihost.analysis.facts import RankFacts
from pytest_multihost.reporting.progress import INTERVAL_S, erase, overlay, progress_text


@dataclass(slots=True)
class LiveLine:
    """A line that says where the ranks are, while a world takes longer than a second.

    A context manager: leaving it takes the line away.
    """

    config: pytest.Config
    _shown_s: float = 0.0

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the line away."""
        if self._shown_s:
            self._write(erase())

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show where the ranks are after `seconds`."""
        if seconds < self._shown_s + INTERVAL_S:
            return
        self._shown_s = seconds
        writer: Any = self.config.get_terminal_writer()
        width = writer.fullwidth - writer.width_of_current_line
        self._write(overlay(progress_text(seconds, facts), width))

    def _write(self, text: str) -> None:
        """Write to the terminal itself, if the output is one.

        Past the terminal writer, whose count of columns must not see our text; and past the
        capture, which holds the writer's descriptor while a test runs.
        """
        capture: Any = self.config.pluginmanager.get_plugin("capturemanager")
        is_free = capture.global_and_fixture_disabled() if capture else nullcontext()
        file = self.config.get_terminal_writer()._file  # noqa: SLF001 - no public way
        with is_free:
            if self._is_terminal(file):
                file.write(text)
                file.flush()

    def _is_terminal(self, file: TextIO) -> bool:
        """A CI log may pretend to be a terminal; there each update would be a line."""
        if os.environ.get("CI") or self.config.get_verbosity() < 0:
            return False
        return bool(getattr(file, "isatty", lambda: False)())
