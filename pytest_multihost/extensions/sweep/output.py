"""Collects what the ranks of a world have printed, logged or warned, to compare it between runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pytest_multihost.core.model.event import ReportMade, WarningRecorded
from pytest_multihost.core.model.result import WorldResult

MOST_LINES = 400
"""More different lines than these are not compared."""

_VARIES = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+(?:\.\d+)?")
_LINE, _LOG_BYTES = 160, 1 << 16


def lines_said(result: WorldResult, directory: Path, scratch: Path) -> tuple[str, ...] | None:
    """Return the different lines that ranks have printed, logged or warned; None if too many.

    Numbers and folders in them are replaced, because they differ in each run.

    Args:
        directory: The folder with the logs of the ranks.
        scratch: The world's own directory.
    """
    lines: set[str] = set()
    for text in _texts(result, directory):
        plain = _VARIES.sub("#", text.replace(str(scratch), "*"))
        lines |= {line.strip()[:_LINE] for line in plain.splitlines()}
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
    for rank in range(result.spec.size):
        try:
            with (directory / f"rank-{rank}.log").open("rb") as file:
                yield file.read(_LOG_BYTES).decode("utf-8", "backslashreplace")
        except OSError:
            continue


def is_said(now: tuple[str, ...] | None, usual: tuple[str, ...] | None) -> bool:
    """Return whether ranks may have said something that those of the undisturbed run had not."""
    return now is None or usual is None or not set(now) <= set(usual)
