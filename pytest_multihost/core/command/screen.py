"""What is shown of a script that runs: the output of its ranks, and a line while there is none."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.report import LiveOutput
from pytest_multihost.core.report.live_line import ERASE
from pytest_multihost.core.report.text import page_sections
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


# The page for the terminal of a world that is no attempt of a test.


def has_colours() -> bool:
    """Return whether standard output is a terminal that is to show colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def page_of(judged: Judgement, files: str, *, shows_native: bool = False) -> str:
    """Return the page for the terminal, in colour and in its width if that is one.

    Args:
        files: Where what it was told from is.
        shows_native: Whether native frames are shown, if they were read.
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = [f"{_word(judged)}  {judged.finding.reason}"]
    for title, text in _tracebacks(judged):
        lines += [f"--- {title}", text]
    for part in page_sections(judged, files=files, columns=columns, shows_native=shows_native):
        lines += [f"--- {part.title}", part.painted if has_colours() else part.text]
    return "\n".join(lines)


def _word(judged: Judgement) -> str:
    """Return in a word how the world has ended, or whether it hangs."""
    found, outcome = judged.diagnosis, judged.finding.outcome
    if outcome in ("failed", "crashed", "error"):
        return outcome.upper()
    if found is None or outcome != "hung":
        return "NOT KNOWN TO HANG"
    # Who looks only once cannot tell a slow rank from one that hangs, unless it is proven.
    is_sure = found.detected_by != "attach" or judged.result.reason is not None
    return "HUNG" if is_sure else "HUNG?"


def _tracebacks(judged: Judgement) -> Iterator[tuple[str, str]]:
    """Yield title and text of the traceback of the rank that decided."""
    for each in judged.finding.ranks:
        if each.facts.rank == judged.finding.headline and each.error is not None:
            yield f"rank {each.facts.rank}: {each.error.type}", each.error.text.rstrip()
