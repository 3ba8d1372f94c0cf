"""What is shown while a world runs: a line on a terminal, or with -s the ranks' output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_multihost.blame import BlockingRanks
from pytest_multihost.outcome import RankFacts
from pytest_multihost.pytest_private import (
    is_terminal,
    terminal_writer,
    uncaptured,
    write_uncounted,
)
from pytest_multihost.report import LiveOutput
from pytest_multihost.report.text import ERASE, blocking_text, overlay, progress_text
from pytest_multihost.watch.probes import PySpySampler

FindBlockingRanks = Callable[[Sequence[RankFacts]], BlockingRanks | None]
"""Returns the ranks that the others wait for, if they wait for any."""


@dataclass(slots=True)
class LiveLine:
    """A line that says where the ranks are, while a world takes longer than a second.

    Where some wait for another, it names that one and what it does.

    Attributes:
        config: The run's.
        blocking_ranks: Returns the ranks that the others wait for.
        tick_s: How often it is to be updated.
    """

    config: pytest.Config
    blocking_ranks: FindBlockingRanks
    tick_s: ClassVar[float] = 1.0
    _shown_s: float = 0.0
    _sampler: PySpySampler = field(default_factory=PySpySampler)
    _since: tuple[tuple[int, ...], float] = ((), 0.0)

    def close(self) -> None:
        """Take the line away."""
        self._sampler.close()
        if self._shown_s:
            self._overwrite(lambda _: ERASE)

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show where the ranks are after `seconds`."""
        if seconds < self._shown_s + self.tick_s:
            return
        self._shown_s = seconds
        self._overwrite(lambda width: overlay(self._text(seconds, facts), width))

    def _text(self, seconds: float, facts: Sequence[RankFacts]) -> str:
        blocking = self.blocking_ranks(facts)
        if blocking is None:
            return progress_text(seconds, facts)
        if self._since[0] != blocking.ranks:
            self._since = blocking.ranks, seconds
        where = self._sampler.user_frame(blocking.pid) if blocking.pid is not None else None
        return blocking_text(seconds, blocking, for_s=seconds - self._since[1], where=where)

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
    config: pytest.Config, directory: Path, size: int, blocking_ranks: FindBlockingRanks
) -> Iterator[LiveLine | LiveOutput]:
    """Show a running world: by a line on a terminal, or with -s the ranks' output."""
    is_captured = config.getoption("capture", None) != "no"
    output = LiveOutput(directory, size, partial(write_through, config))
    display = LiveLine(config, blocking_ranks) if is_captured else output
    try:
        yield display
    finally:
        display.close()
