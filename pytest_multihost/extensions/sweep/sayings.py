"""Finds the new prints, logs and warnings of a world's ranks.

A disturbed run is compared with the undisturbed one. Numbers, addresses and paths in a line do not
count, because they differ from run to run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from pytest_multihost.core.model.event import ReportMade, WarningRecorded
from pytest_multihost.core.model.result import WorldResult

MOST_LINES = 400
"""More different lines than these are not compared."""

_SEVERE = re.compile(
    r"\b(warn(ing)?s?|error|critical|fatal|fail(ed|ure|s)?|exception|traceback)\b"
    r"|\w+(Error|Warning|Exception)\b|^[WEF]\d{4} ",
    re.IGNORECASE,
)
"""Matches a line of a warning or an error, also as glog writes it ("W1127 14:12:51 ...")."""

_VARIABLE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+(?:\.\d+)?|/\S+")
"""Numbers, addresses, digests and paths."""

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


def lines_said(result: WorldResult, directory: Path) -> tuple[str, ...] | None:
    """Return the different lines that ranks have printed, logged or warned; None if too many.

    Args:
        directory: The folder with the logs of the ranks.
    """
    lines: set[str] = set()
    for text in _texts(result, directory):
        lines |= {_shape(line) for line in text.splitlines()}
        if len(lines) > MOST_LINES:
            return None
    return tuple(sorted(lines - {""}))


def _texts(result: WorldResult, directory: Path) -> Iterator[str]:
    for event in result.history:
        match event.body:
            case ReportMade(report=report):
                for section in report.get("sections", ()):
                    yield str(section[1])
            case WarningRecorded(warning=warning):
                yield warning.message
    yield from read_logs(directory, result.spec.size).values()


def is_said(now: tuple[str, ...] | None, usual: tuple[str, ...] | None) -> bool:
    """Return whether ranks may have said something that those of the undisturbed run had not."""
    return now is None or usual is None or not set(now) <= set(usual)


def usual_lines(logs: Mapping[int, str]) -> frozenset[str]:
    """Return the severe lines of an undisturbed run, without parts that differ from run to run."""
    return frozenset(_shape(line) for line in _severe(logs.values()))


def first_saying(logs: Mapping[int, str], usual: Collection[str]) -> str:
    """Return the first severe line that an undisturbed run did not have; empty without one.

    Args:
        usual: The severe lines of the undisturbed run.
    """
    new = (line for line in _severe(logs.values()) if _shape(line) not in usual)
    return next(new, "")[:_MAX_LINE]


def _severe(texts: Iterable[str]) -> Iterable[str]:
    return (line.strip() for text in texts for line in text.splitlines() if _SEVERE.search(line))


def _shape(line: str) -> str:
    """Return a line without parts that differ from run to run."""
    return _VARIABLE.sub("#", line).strip()[:_MAX_LINE]
