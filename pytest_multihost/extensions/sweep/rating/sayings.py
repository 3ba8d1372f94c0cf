"""Finds lines in the logs of ranks that tell a reader about a failure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

_SEVERE = re.compile(
    r"\b(warn(ing)?s?|error|critical|fatal|fail(ed|ure|s)?|exception|traceback)\b"
    r"|\w+(Error|Warning|Exception)\b|^[WEF]\d{4} ",
    re.IGNORECASE,
)
"""Matches a line of a warning or an error, also as glog writes it ("W1127 14:12:51 ...")."""

_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+|/\S+")
"""Numbers, addresses and paths, which differ from run to run."""

_MAX_BYTES, _MAX_LINE = 1 << 20, 200


def read_logs(directory: Path, size: int) -> dict[int, str]:
    """Return the last megabyte of each rank's log; empty for a log that cannot be read."""
    return {rank: _tail(directory / f"rank-{rank}.log") for rank in range(size)}


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MAX_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def usual_lines(logs: Mapping[int, str]) -> frozenset[str]:
    """Return the severe lines of an undisturbed run, without what differs from run to run."""
    return frozenset(_shape(line) for line in _severe(logs.values()))


def first_saying(logs: Mapping[int, str], usual: Collection[str]) -> str:
    """Return the first severe line that an undisturbed run did not have; empty without one.

    Args:
        logs: The log of each rank.
        usual: The severe lines of the undisturbed run.
    """
    new = (line for line in _severe(logs.values()) if _shape(line) not in usual)
    return next(new, "")[:_MAX_LINE]


def _severe(texts: Iterable[str]) -> Iterable[str]:
    return (line.strip() for text in texts for line in text.splitlines() if _SEVERE.search(line))


def _shape(line: str) -> str:
    return _VARIABLE.sub("#", line)
