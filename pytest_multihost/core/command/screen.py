"""What is shown of a script that runs: the output of its ranks, and a line while there is none."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.command.world_page import has_colours
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.report import LiveOutput
from pytest_multihost.core.report.live_line import ERASE
from pytest_multihost.core.watched_world import WorldProgress

_COLOURS = (36, 32, 33, 35, 34, 31)
"""Cyan, green, yellow, magenta, blue, red: in turn, for the ranks."""

_LINE_S = 1.0
"""How long nothing must have been printed before the line is shown, and how often it changes."""


@dataclass(slots=True)
class Screen:
    """Standard output while the world runs.

    Attributes:
        progress: Says where the ranks are.
        output: What the ranks print; None: it is not shown.
    """

    progress: WorldProgress
    output: LiveOutput | None = None
    _printed_s: float = 0.0
    _has_new: bool = False
    _line_s: float = 0.0
    _has_line: bool = False
    _is_terminal: bool = field(
        default_factory=lambda: sys.stdout.isatty() and not os.environ.get("CI")
    )

    @classmethod
    def make(cls, progress: WorldProgress, directory: Path, size: int, *, hides: bool) -> Screen:
        """Return the screen of a world.

        Args:
            progress: Says where the ranks are.
            directory: Where their logs are.
            size: How many there are.
            hides: Whether what they print is not shown.
        """
        screen = cls(progress)
        if not hides:
            screen.output = LiveOutput(directory, size, screen.write, _prefix(size))
        return screen

    def write(self, text: str) -> None:
        """Write a text in place of the line."""
        if self._has_line:
            sys.stdout.write(f"\r{ERASE}")
            self._has_line = False
        self._has_new = True
        sys.stdout.write(text)

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show what has been printed, or where the ranks are after `seconds`."""
        if self.output is not None:
            self.output.show()
        if self._has_new:
            self._printed_s, self._has_new = seconds, False
        if self._is_terminal and seconds >= max(self._printed_s, self._line_s) + _LINE_S:
            columns = shutil.get_terminal_size().columns
            text = self.progress.text(seconds, facts)[: columns - 1]
            sys.stdout.write(f"\r{text}{ERASE}")
            self._line_s, self._has_line = seconds, True
        sys.stdout.flush()

    def close(self) -> None:
        """Show what is left, and take the line away."""
        self.progress.close()
        self.write("")
        if self.output is not None:
            self.output.close()
        sys.stdout.flush()


def _prefix(size: int) -> Callable[[int], str]:
    """Return what makes the beginning of a line of a rank, in colour on a terminal."""
    width, is_coloured = len(str(size - 1)), has_colours()

    def prefix(rank: int) -> str:
        text = f"[rank {rank:>{width}}]"
        colour = _COLOURS[rank % len(_COLOURS)]
        return f"\x1b[{colour}m{text}\x1b[0m " if is_coloured else f"{text} "

    return prefix
