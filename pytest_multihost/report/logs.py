"""The beginning and the end of a rank's log, for the pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """Parts of a log.

    Attributes:
        name: The file's name.
        head: Its beginning.
        tail: Its end; empty if `head` is the whole log.
        left_out: Number of bytes between the two.
    """

    name: str
    head: str
    tail: str = ""
    left_out: int = 0


def read_log(path: Path, *, head: int, tail: int) -> LogExcerpt:
    """Read the beginning and the end of a log; a missing log counts as empty.

    Args:
        path: The log.
        head: Bytes to read from its beginning.
        tail: Bytes to read from its end.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= head + tail:
                head, tail = size, 0
            first = file.read(head).decode("utf-8", "backslashreplace")
            file.seek(size - tail)
            last = file.read(tail).decode("utf-8", "backslashreplace")
            return LogExcerpt(path.name, first, last, size - head - tail)
    except OSError:
        return LogExcerpt(path.name, "")
