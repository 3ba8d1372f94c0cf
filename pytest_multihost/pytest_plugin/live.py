"""What is shown while a world runs: a line on a terminal, or with -s the ranks' output."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import pytest

from pytest_multihost.analysis.facts import RankFacts
from pytest_multihost.reporting.progress import INTERVAL_S, erase, overlay, progress_text


@dataclass(slots=True)
class LiveLine:
    """A line that says where the ranks are, while a world takes longer than a second.

    A context manager: leaving it takes the line away.
    """

    config: pytest.Config
    _shown_s: float = 0.0

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the line away."""
        if self._shown_s:
            self._write(erase())

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show where the ranks are after `seconds`."""
        if seconds < self._shown_s + INTERVAL_S:
            return
        self._shown_s = seconds
        writer = _terminal_writer(self.config)
        if writer is not None:
            width = writer.fullwidth - writer.width_of_current_line
            self._write(overlay(progress_text(seconds, facts), width))

    def _write(self, text: str) -> None:
        """Write to the terminal itself, if the output is one.

        Past the terminal writer, whose count of columns must not see our text; and past the
        capture, which holds the writer's descriptor while a test runs.
        """
        writer = _terminal_writer(self.config)
        file = writer._file if writer is not None else None  # noqa: SLF001 - no public way
        with _uncaptured(self.config):
            if file is not None and self._is_terminal(file):
                file.write(text)
                file.flush()

    def _is_terminal(self, file: TextIO) -> bool:
        """A CI log may pretend to be a terminal; there each update would be a line."""
        if os.environ.get("CI") or self.config.get_verbosity() < 0:
            return False
        return bool(getattr(file, "isatty", lambda: False)())


def _terminal_writer(config: pytest.Config) -> Any:  # noqa: ANN401 - private to pytest
    """Return what pytest writes to the terminal with, or None: xdist's workers have none."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return reporter._tw if reporter is not None else None  # noqa: SLF001 - no public way


def write_through(config: pytest.Config, text: str) -> None:
    """Write `text` to where pytest writes, also while it captures what tests write."""
    writer = _terminal_writer(config)
    if writer is not None:
        with _uncaptured(config):
            writer.write(text)
            writer.flush()


def _uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


@dataclass(slots=True)
class LiveOutput:
    """What the ranks print, line by line as they print it, for ``pytest -s``.

    A context manager: leaving it shows what is left.

    Attributes:
        directory: Where the ranks' logs are.
        size: Number of ranks.
        write: Takes the text.
    """

    directory: Path
    size: int
    write: Callable[[str], object]
    _read: dict[int, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Show what is left, also if its last line is not complete."""
        self._show(is_last=True)

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:  # noqa: ARG002 - OnTick
        """Show the lines that have been completed since the last look."""
        self._show(is_last=False)

    def _show(self, *, is_last: bool) -> None:
        for rank in range(self.size):
            new = self._new_bytes(rank)
            complete = new if is_last else new[: new.rfind(b"\n") + 1]
            self._read[rank] = self._read.get(rank, 0) + len(complete)
            for line in complete.decode("utf-8", "backslashreplace").splitlines():
                self.write(f"[rank {rank}] {line}\n")

    def _new_bytes(self, rank: int) -> bytes:
        try:
            with (self.directory / f"rank-{rank}.log").open("rb") as file:
                file.seek(self._read.get(rank, 0))
                return file.read()
        except OSError:  # not there yet
            return b""
