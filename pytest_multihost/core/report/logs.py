"""Reads the ranks' logs: excerpts for the pages, and new lines while the ranks run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pytest_multihost.core.model.regular_file import open_regular
from pytest_multihost.core.slots.rank_log import MAX_LOG_BYTES, cut_bytes

_MAX_SHOWN = 4_000_000
"""Maximum number of bytes of a rank's output that is shown at once."""


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """The beginning and the end of a log.

    Attributes:
        tail: The end; empty if `head` is the whole log.
        left_out: Number of bytes between the two.
        cut: How many of these bytes the file lacks as well, because it had become too long.
    """

    name: str
    head: str
    tail: str = ""
    left_out: int = 0
    cut: int = 0

    def describe_left_out(self, path: str) -> str:
        """Return a text on the bytes between the two parts, and where they can be found."""
        rest = f"all of it: {path}"
        if self.cut:
            rest = f"{self.cut} of them were cut from {path}, which had more than {MAX_LOG_BYTES}"
        return f"{self.left_out} bytes left out; {rest}"


def read_log(path: Path, *, head: int, tail: int) -> LogExcerpt:
    """Return the beginning and the end of a log; a missing log counts as empty.

    Args:
        head: Bytes to read from the beginning.
        tail: Bytes to read from the end.
    """
    try:
        with open_regular(path, follows=False) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= head + tail:
                head, tail = size, 0
            cut = cut_bytes(file)
            first = file.read(head).decode("utf-8", "backslashreplace")
            file.seek(size - tail)
            last = file.read(tail).decode("utf-8", "backslashreplace")
            return LogExcerpt(path.name, first, last, size - head - tail + cut, cut)
    except OSError:
        return LogExcerpt(path.name, "")


@dataclass(slots=True)
class LiveOutput:
    """Copies the ranks' output to the terminal, line by line as they print it, for ``pytest -s``.

    Attributes:
        directory: The folder with the ranks' logs.
        prefix: Returns the text before each line of a rank.
        tick_s: Interval between two calls of `show`.
    """

    directory: Path
    size: int
    write: Callable[[str], object]
    prefix: Callable[[int], str] = "[rank {}] ".format
    tick_s: ClassVar[float] = 0.1
    _read: dict[int, int] = field(default_factory=dict)

    def close(self) -> None:
        """Show the rest, including an incomplete last line."""
        self.show(is_last=True)

    def show(self, *_: object, is_last: bool = False) -> None:
        """Show the lines completed since the last call."""
        for rank in range(self.size):
            try:
                with (self.directory / f"rank-{rank}.log").open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    shown = max(0, self._read.get(rank, 0) - cut_bytes(file))
                    start = max(shown, size - _MAX_SHOWN)
                    if start > shown:  # else a slow terminal would hold up pytest
                        self.write(f"{self.prefix(rank)}... {start - shown} bytes left out ...\n")
                    self._read[rank] = file.seek(start)
                    new = file.read(_MAX_SHOWN)
            except OSError:  # the file does not exist yet
                continue
            complete = new if is_last else new[: new.rfind(b"\n") + 1]
            self._read[rank] += len(complete)
            text = complete.decode("utf-8", "backslashreplace").removesuffix("\n")
            own = f"[rank{rank}]: "  # torch begins the lines of a traceback with it
            for line in text.split("\n") if complete else ():
                # Only the last state of a progress bar that overwrites itself.
                last = line.rstrip("\r").rpartition("\r")[2].removeprefix(own)
                self.write(f"{self.prefix(rank)}{last}\n")


def without_lines(text: str, patterns: Sequence[str]) -> str:
    """Return a text without the lines that begin with a match of one of the patterns."""
    lines = text.splitlines(keepends=True)
    return "".join(each for each in lines if not any(re.match(p, each) for p in patterns))
