"""Shows a running world: one line on a terminal, or the output of the ranks with -s."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_multihost.core.attempt import FindBlockingRanks, WorldProgress
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.pytest_private import (
    is_terminal,
    terminal_writer,
    uncaptured,
    write_uncounted,
)
from pytest_multihost.core.report import LiveOutput
from pytest_multihost.core.report.live_line import ERASE, overlay

IS_LENT = pytest.StashKey[bool]()
"""Whether another process uses pytest's terminal, so that nothing may be written over it."""


@dataclass(slots=True)
class LiveLine:
    """A line about the ranks' progress, shown when a world takes longer than a second.

    If ranks wait for another one, the line names it and its activity.
    """

    config: pytest.Config
    progress: WorldProgress
    tick_s: ClassVar[float] = 1.0
    _shown_s: float = 0.0

    def close(self) -> None:
        """Erase the line."""
        self.progress.close()
        if self._shown_s:
            overwrite(self.config, lambda _: ERASE)

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Update the line `seconds` after the start of the world, unless it is too early."""
        if seconds < self._shown_s + self.tick_s:
            return
        self._shown_s = seconds
        overwrite(self.config, lambda width: overlay(self.progress.text(seconds, facts), width))


def overwrite(config: pytest.Config, text: Callable[[int], str]) -> bool:
    """Write a text right of the cursor if this is a terminal and not lent; return whether it is.

    Under CI nothing is written: a CI log may pretend to be a terminal, and each update would add a
    line to it.

    Args:
        text: Returns the text, given the number of columns left for it.
    """
    writer = terminal_writer(config)
    if writer is None or os.environ.get("CI") or config.get_verbosity() < 0:
        return False
    if config.stash.get(IS_LENT, False):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # the test goes on in the main thread, and its output must be captured
    # Bypass the capture, which holds the writer's file descriptor while a test runs.
    with uncaptured(config):
        if is_there := is_terminal(writer):
            write_uncounted(writer, text(writer.fullwidth - writer.width_of_current_line))
    return is_there


def write_through(config: pytest.Config, text: str) -> None:
    """Write `text` to pytest's own output, even while pytest captures the tests' output."""
    writer = terminal_writer(config)
    if writer is not None:
        with uncaptured(config):
            writer.write(text)
            writer.flush()


@contextmanager
def live_display(
    config: pytest.Config, directory: Path, names: Names, find: FindBlockingRanks
) -> Iterator[LiveLine | LiveOutput]:
    """Show a running world: one line on a terminal, or the ranks' output with -s."""
    is_captured = config.getoption("capture", None) != "no"
    output = LiveOutput(directory, names.size, partial(write_through, config))
    display = LiveLine(config, WorldProgress(find, names)) if is_captured else output
    try:
        yield display
    finally:
        display.close()
