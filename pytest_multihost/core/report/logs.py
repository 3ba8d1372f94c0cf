"""The logs of ranks: their beginnings and ends, for the pages, and their lines as they come."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pytest_multihost.core.slots.rank_log import MAX_LOG_BYTES, cut_bytes

_MAX_SHOWN = 4_000_000
"""How much of a rank's output is shown at once."""


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """Parts of a log.

    Attributes:
        tail: Its end; empty if `head` is the whole log.
        left_out: Number of bytes between the two.
        cut: How many of these are not in the file either: it had become too long.
    """

    name: str
    head: str
    tail: str = ""
    left_out: int = 0
    cut: int = 0

    def describe_left_out(self, path: str) -> str:
        """Say what is between the two parts, and where the rest of it is."""
        rest = f"all of it: {path}"
        if self.cut:
            rest = f"{self.cut} of them were cut from {path}, which had more than {MAX_LOG_BYTES}"
        return f"{self.left_out} bytes left out; {rest}"


def read_log(path: Path, *, head: int, tail: int) -> LogExcerpt:
    """Read the beginning and the end of a log; a missing log counts as empty.

    Args:
        head: Bytes to read from its beginning.
        tail: Bytes to read from its end.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
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
    """What the ranks print, line by line as they print it, for ``pytest -s``.

    Attributes:
        directory: Where the ranks' logs are.
        size: Number of ranks.
        write: Takes the text.
        prefix: Returns what is before each line of a rank.
        tick_s: How often it is to be updated.
    """

    directory: Path
    size: int
    write: Callable[[str], object]
    prefix: Callable[[int], str] = "[rank {}] ".format
    tick_s: ClassVar[float] = 0.1
    _read: dict[int, int] = field(default_factory=dict)

    def close(self) -> None:
        """Show what is left, also if its last line is not complete."""
        self.show(is_last=True)

    def show(self, *_: object, is_last: bool = False) -> None:
        """Show the lines that have been completed since the last time."""
        for rank in range(self.size):
            try:
                with (self.directory / f"rank-{rank}.log").open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    shown = max(0, self._read.get(rank, 0) - cut_bytes(file))
                    start = max(shown, size - _MAX_SHOWN)
                    if start > shown:  # the terminal is not to hold up pytest
                        self.write(f"{self.prefix(rank)}... {start - shown} bytes left out ...\n")
                    self._read[rank] = file.seek(start)
                    new = file.read(_MAX_SHOWN)
            except OSError:  # not there yet
                continue
            complete = new if is_last else new[: new.rfind(b"\n") + 1]
            self._read[rank] += len(complete)
            text = complete.decode("utf-8", "backslashreplace").removesuffix("\n")
            for line in text.split("\n") if complete else ():
                # Of a progress bar that overwrites itself only what is left in the end.
                last = line.rstrip("\r").rpartition("\r")[2]
                self.write(f"{self.prefix(rank)}{last}\n")
