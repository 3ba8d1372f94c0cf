"""Shows a running script: its ranks' output, and a line of progress while there is none.

`page_of` returns the terminal's page of a world that is not an attempt of a test.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.attempt import WorldProgress
from pytest_multihost.core.command.world_page import has_colours
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.report import LiveOutput
from pytest_multihost.core.report.live_line import ERASE

_COLOURS = (36, 32, 33, 35, 34, 31)
"""Cyan, green, yellow, magenta, blue, red; the ranks get them in turn."""

_LINE_S = 1.0
"""Silence before the line is shown, and the interval between its updates."""


@dataclass(slots=True)
class LiveScreen:
    """Standard output while the world runs.

    Attributes:
        output: The ranks' output; None if it is not shown.
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
    def make(
        cls, progress: WorldProgress, directory: Path, names: Sequence[str], *, hides: bool
    ) -> LiveScreen:
        """Return the screen of a world.

        Args:
            directory: The folder of the ranks' logs.
            names: The names of the ranks, for the beginnings of their lines.
            hides: Whether to hide the ranks' output.
        """
        screen = cls(progress)
        if not hides:
            screen.output = LiveOutput(directory, len(names), screen.write, _prefix(names))
        return screen

    def write(self, text: str) -> None:
        """Write a text in place of the line."""
        if self._has_line:
            sys.stdout.write(f"\r{ERASE}")
            self._has_line = False
        self._has_new = True
        sys.stdout.write(text)

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show new output, or after a silence the ranks' progress after `seconds`."""
        if self.output is not None:
            self.output.show()
        if self._has_new:
            self._printed_s, self._has_new = seconds, False
        if self._is_terminal and seconds >= max(self._printed_s, self._line_s) + _LINE_S:
            columns = shutil.get_terminal_size().columns
            text = printable(self.progress.text(seconds, facts))[: columns - 1]
            sys.stdout.write(f"\r{text}{ERASE}")
            self._line_s, self._has_line = seconds, True
        sys.stdout.flush()

    def close(self) -> None:
        """Show the remaining output, and erase the line."""
        self.progress.close()
        self.write("")
        if self.output is not None:
            self.output.close()
        sys.stdout.flush()


def _prefix(names: Sequence[str]) -> Callable[[int], str]:
    """Return a function that returns the prefix of a rank's lines, in colour on a terminal."""
    width, is_coloured = max(map(len, names)), has_colours()

    def prefix(rank: int) -> str:
        role, number = names[rank].split()
        text = f"[{role} {number:>{width - len(role) - 1}}]"
        colour = _COLOURS[rank % len(_COLOURS)]
        return f"\x1b[{colour}m{text}\x1b[0m " if is_coloured else f"{text} "

    return prefix
