"""Shows on a terminal how much of long logs has been read."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.report.live_line import ERASE

_INTERVAL_S = 0.5
_MB = 1_000_000
_CELLS = 20


@dataclass(slots=True)
class ProgressLine:
    """A line on standard error while logs are read; nothing elsewhere than on a terminal.

    Attributes:
        total: The bytes of all inputs; None if that is unknown.
        clock: Returns seconds.
    """

    total: int | None
    clock: Callable[[], float] = time.monotonic
    _read: int = 0
    _shown_s: float = field(init=False)
    _has_line: bool = False

    def __post_init__(self) -> None:
        """Begin: work of less than an interval shows nothing."""
        self._shown_s = self.clock()

    def add(self, name: str, count: int) -> None:
        """Note that some bytes of an input have been read."""
        self._read += count
        now_s = self.clock()
        if now_s < self._shown_s + _INTERVAL_S:
            return
        self._shown_s = now_s
        if sys.stderr.isatty() and not os.environ.get("CI"):
            columns = shutil.get_terminal_size().columns
            text = printable(f"{self._bar()} {name}")[: columns - 1]
            sys.stderr.write(f"\r{text}{ERASE}")
            sys.stderr.flush()
            self._has_line = True

    def close(self) -> None:
        """Erase the line."""
        if self._has_line:
            sys.stderr.write(f"\r{ERASE}")
            sys.stderr.flush()

    def _bar(self) -> str:
        read = f"{self._read / _MB:,.0f}"
        if not self.total:
            return f"{read} MB read"
        done = min(_CELLS, _CELLS * self._read // self.total)
        return f"[{'#' * done:<{_CELLS}}] {read} of {self.total / _MB:,.0f} MB"
