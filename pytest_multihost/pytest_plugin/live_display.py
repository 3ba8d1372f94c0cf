"""What is shown while a world runs: a line on a terminal, or with -s the ranks' output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_multihost.outcome import RankFacts
from pytest_multihost.pytest_private import (
    is_terminal,
    terminal_writer,
    uncaptured,
    write_uncounted,
)
from pytest_multihost.report import LiveOutput
from pytest_multihost.report.text import ERASE, overlay
from pytest_multihost.watched_world import FindBlockingRanks, WorldProgress


@dataclass(slots=True)
class LiveLine:
    """A line that says where the ranks are, while a world takes longer than a second.

    Where some wait for another, it names that one and what it does.

    Attributes:
        config: The run's.
        progress: Says it.
        tick_s: How often it is to be updated.
    """

    config: pytest.Config
    progress: WorldProgress
    tick_s: ClassVar[float] = 1.0
    _shown_s: float = 0.0

    def close(self) -> None:
        """Take the line away."""
        self.progress.close()
        if self._shown_s:
            self._overwrite(lambda _: ERASE)

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show where the ranks are after `seconds`."""
        if seconds < self._shown_s + self.tick_s:
            return
        self._shown_s = seconds
        self._overwrite(lambda width: overlay(self.progress.text(seconds, facts), width))

    def _overwrite(self, text: Callable[[int], str]) -> None:
        """Write a text of at most that many columns behind the cursor, if this is a terminal.

        A CI log may pretend to be one; there each update would be a line.
        """
        writer = terminal_writer(self.config)
        if writer is None or os.environ.get("CI") or self.config.get_verbosity() < 0:
            return
        # Past the capture, which holds the writer's descriptor while a test runs.
        with uncaptured(self.config):
            if is_terminal(writer):
                write_uncounted(writer, text(writer.fullwidth - writer.width_of_current_line))


def write_through(config: pytest.Config, text: str) -> None:
    """Write `text` to where pytest writes, also while it captures what tests write."""
    writer = terminal_writer(config)
    if writer is not None:
        with uncaptured(config):
            writer.write(text)
            writer.flush()


@contextmanager
def live_display(
    config: pytest.Config, directory: Path, size: int, find: FindBlockingRanks
) -> Iterator[LiveLine | LiveOutput]:
    """Show a running world: by a line on a terminal, or with -s the ranks' output."""
    is_captured = config.getoption("capture", None) != "no"
    output = LiveOutput(directory, size, partial(write_through, config))
    display = LiveLine(config, WorldProgress(find)) if is_captured else output
    try:
        yield display
    finally:
        display.close()
