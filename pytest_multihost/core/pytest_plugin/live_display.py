"""What is shown while a world runs: a line on a terminal, or with -s the output of the ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.pytest_private import (
    is_terminal,
    terminal_writer,
    uncaptured,
    write_uncounted,
)
from pytest_multihost.core.report import LiveOutput
from pytest_multihost.core.report.live_line import ERASE, overlay
from pytest_multihost.core.watched_world import FindBlockingRanks, WorldProgress


@dataclass(slots=True)
class LiveLine:
    """A line that says where the ranks are, while a world takes longer than a second.

    Where some wait for another, it names that one and what it does.

    Attributes:
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
            overwrite(self.config, lambda _: ERASE)

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show where the ranks are after `seconds`."""
        if seconds < self._shown_s + self.tick_s:
            return
        self._shown_s = seconds
        overwrite(self.config, lambda width: overlay(self.progress.text(seconds, facts), width))


def overwrite(config: pytest.Config, text: Callable[[int], str]) -> bool:
    """Write a text behind the cursor, if this is a terminal; return whether it is.

    A CI log may pretend to be one; there each update would be a line.

    Args:
        text: Returns the text, given how many columns there are for it.
    """
    writer = terminal_writer(config)
    if writer is None or os.environ.get("CI") or config.get_verbosity() < 0:
        return False
    # Past the capture, which holds the writer's descriptor while a test runs.
    with uncaptured(config):
        if is_there := is_terminal(writer):
            write_uncounted(writer, text(writer.fullwidth - writer.width_of_current_line))
    return is_there


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
