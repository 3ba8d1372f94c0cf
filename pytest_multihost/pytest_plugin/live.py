"""Show the live line on a terminal, and nothing anywhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pytest

from pytest_multihost.analysis.facts import RankFacts
from pytest_multihost.reporting.progress import SHOW_AFTER_S, erase, overlay, progress_text


@dataclass(slots=True)
class LiveLine:
    """A line that says where the ranks are, while a world takes longer than a second.

    A context manager: leaving it takes the line away.
    """

    config: pytest.Config
    _is_shown: bool = False

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
        if self._is_shown:
            self._write(erase())

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show where the ranks are after `seconds`."""
        if seconds < SHOW_AFTER_S or not self._is_on_terminal():
            return
        writer: Any = self.config.get_terminal_writer()
        width = writer.fullwidth - writer.width_of_current_line
        self._write(overlay(progress_text(seconds, facts), width))
        self._is_shown = True

    def _is_on_terminal(self) -> bool:
        """A CI log may pretend to be a terminal; there the line would be written line by line."""
        writer: Any = self.config.get_terminal_writer()
        is_terminal = bool(getattr(writer._file, "isatty", lambda: False)())  # noqa: SLF001
        return is_terminal and not os.environ.get("CI") and self.config.get_verbosity() >= 0

    def _write(self, text: str) -> None:
        """Write past the terminal writer, whose count of columns must not see our text."""
        writer: Any = self.config.get_terminal_writer()
        writer._file.write(text)  # noqa: SLF001
        writer._file.flush()  # noqa: SLF001
