"""The debugger in ranks: --pdb, --trace, breakpoint(), and the terminal that ranks borrow."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_multihost.core.model.event import Event, TerminalReturned
from pytest_multihost.core.model.spec import Debugger
from pytest_multihost.core.pytest_plugin.live_display import overwrite, write_through
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.core.pytest_private import input_terminal
from pytest_multihost.core.report.live_line import ERASE

OPTION = "--multihost-pdb-rank"

QUIT = "Quitting debugger"
"""Why a run ends whose user has quit the debugger; pytest's own words."""


def find_debugger(config: pytest.Config) -> Debugger | None:
    """Return how ranks get the terminal of this run; None if it has none, or is one of several."""
    if hasattr(config, "workerinput"):  # an xdist worker
        return None
    terminal = input_terminal(config)
    if terminal is None:
        return None
    return Debugger(
        terminal=terminal,
        rank=config.getoption("multihost_pdb_rank"),
        is_post_mortem=bool(config.getoption("usepdb", None)),
        is_tracing=bool(config.getoption("trace", None)),
    )


def check_rank(config: pytest.Config, sizes: Collection[int]) -> None:
    """Check the rank that the user has named against the sizes of the worlds.

    Raises:
        pytest.UsageError: No world has this rank.
    """
    rank, most = config.getoption("multihost_pdb_rank"), max(sizes, default=0)
    if rank is not None and sizes and rank >= most:
        raise usage_error(f"{OPTION}={rank}: the largest test has ranks 0 to {most - 1}")


def debugger_note(
    config: pytest.Config, debugger: Debugger | None, *, is_elsewhere: bool = False
) -> str:
    """Return why --pdb or --trace do not act in ranks; empty if they do, or are not given.

    Args:
        is_elsewhere: Whether other machines have the ranks.
    """
    is_wanted = config.getoption("usepdb", None) or config.getoption("trace", None)
    if not is_wanted or debugger is not None:
        return ""
    why = "the standard input of this run is not a terminal"
    if is_elsewhere:
        why = "ranks on other machines cannot use this machine's terminal"
    return f"multihost: --pdb and --trace do not stop in ranks, because {why}"


def rank_that_quit(history: Iterable[Event]) -> int | None:
    """Return the rank in which the user has quit the debugger, and so the run; None: in none."""
    returned = ((each.rank, each.body) for each in history)
    found = (rank for rank, body in returned if isinstance(body, TerminalReturned) and body.quits)
    return next(found, None)


@dataclass(slots=True)
class BorrowedTerminal:
    """pytest's terminal, while a rank uses it.

    The kernel sends Ctrl-C to pytest, because the rank is in a session of its own, so pytest
    forwards it. Ctrl-Z is ignored: it would stop pytest alone, and the shell and the rank would
    both read from the terminal.
    """

    config: pytest.Config
    path: str
    _handlers: dict[int, Any] = field(default_factory=dict)
    _attributes: list[Any] = field(default_factory=list)

    def lend(self, pid: int) -> None:
        """Leave the terminal to a process."""
        overwrite(self.config, lambda _: ERASE)
        write_through(self.config, "\n")

        def forward(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number, handler in ((signal.SIGINT, forward), (signal.SIGTSTP, signal.SIG_IGN)):
            with contextlib.suppress(ValueError):  # pytest does not run in the main thread
                self._handlers[number] = signal.signal(number, handler)
        self._attributes = self._with_terminal(termios.tcgetattr)

    def take_back(self) -> None:
        """Restore the signals, and the settings that a killed rank may have left."""
        self._with_terminal(lambda it: termios.tcsetattr(it, termios.TCSADRAIN, self._attributes))
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _with_terminal(self, use: Callable[[int], Any]) -> Any:  # noqa: ANN401 - as `termios`
        descriptor = os.open(self.path, os.O_RDWR | os.O_NOCTTY)
        try:
            return use(descriptor)
        finally:
            os.close(descriptor)
