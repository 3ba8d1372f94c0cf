"""The beginning and the end of a rank's log, for the pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.slots.rank_log import MAX_LOG_BYTES, cut_bytes


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """Parts of a log.

    Attributes:
        name: The file's name.
        head: Its beginning.
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
        path: The log.
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
