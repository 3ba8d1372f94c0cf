"""Finds pytest's terminal, lends it to ranks, and ends a run whose user has quit the debugger."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_multihost.core.model.event import Event, Interrupted
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.model.spec import ServicePart, WorldSpec
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.live_display import IS_LENT, overwrite, write_through
from pytest_multihost.core.pytest_plugin.run import RUN
from pytest_multihost.core.pytest_plugin.tally import RUNNING
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.core.pytest_private import input_terminal
from pytest_multihost.core.report.live_line import ERASE
from pytest_multihost.extensions.debugger.messages import NAME, Debugger, TerminalReturned, sent

OPTION = "--multihost-pdb-rank"

QUIT = "Quitting debugger"
"""Why a run ends whose user has quit the debugger; pytest's own words."""

_DEBUGGER = pytest.StashKey[Debugger | None]()
"""How ranks get the terminal of a run; None: it has none."""


def begin_run(config: pytest.Config) -> None:
    """Find the terminal of a run with worlds; say why --pdb and --trace do not stop in ranks.

    Raises:
        pytest.UsageError: No world has the rank that the user has named.
    """
    run = config.stash.get(RUN, None)
    if run is None:  # the tests are only listed
        return
    check_rank(config, [plan.world.size for plan in run.plans.values()])
    is_elsewhere = run.others is not None
    debugger = None if is_elsewhere else find_debugger(config)
    config.stash[_DEBUGGER] = debugger
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    note = debugger_note(config, debugger, is_elsewhere=is_elsewhere)
    if note and reporter is not None and reporter.verbosity >= 0:
        reporter.write_line(note)


def with_debugger(item: pytest.Item, spec: WorldSpec) -> WorldSpec:
    """Return the spec of a test's world with the service that lends the terminal, if it can."""
    config = item.config
    debugger = config.stash.get(_DEBUGGER, None)
    if debugger is None or item.nodeid not in config.stash[RUN].plans:  # a test has called `spawn`
        return spec
    folder = __name__.rpartition(".")[0]
    part = ServicePart(
        server=f"{folder}.lent_terminal:start",
        rank=f"{folder}.in_rank:join",
        settings=to_json(debugger),
        is_interactive=True,
    )
    return replace(spec, services={**spec.services, NAME: part})


def end_if_quit(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """End the run after this test if the user has quit the debugger in a rank of it.

    Raises:
        pytest.exit.Exception: The user has quit in the body of the test.
    """
    rank = rank_that_quit(attempt.judged.result.history)
    if rank is None:
        return
    facts = next(each.facts for each in attempt.judged.finding.ranks if each.facts.rank == rank)
    if isinstance(facts.failure, Interrupted):  # by pytest's Exit
        pytest.exit(QUIT)
    item.session.shouldstop = QUIT


def find_debugger(config: pytest.Config) -> Debugger | None:
    """Return how ranks get the terminal of this run; None if it has none, or is one of several."""
    if hasattr(config, "workerinput"):  # an xdist worker
        return None
    terminal = input_terminal(config)
    if terminal is None:
        return None
    return Debugger(
        terminal=terminal,
        controller=os.getpid(),
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
    returned = ((each.rank, sent(each)) for each in history)
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

    @classmethod
    def of_run(cls, debugger: Debugger) -> BorrowedTerminal:
        """Return the terminal of the run whose test is about to start."""
        return cls(RUNNING[-1].config, debugger.terminal)

    def lend(self, pid: int) -> None:
        """Leave the terminal to a process."""
        overwrite(self.config, lambda _: ERASE)
        write_through(self.config, "\n")
        self.config.stash[IS_LENT] = True

        def forward(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number, handler in ((signal.SIGINT, forward), (signal.SIGTSTP, signal.SIG_IGN)):
            with contextlib.suppress(ValueError):  # pytest does not run in the main thread
                self._handlers[number] = signal.signal(number, handler)
        self._attributes = self._with_terminal(termios.tcgetattr)

    def take_back(self) -> None:
        """Restore the signals, and the settings that a killed rank may have left."""
        self.config.stash[IS_LENT] = False
        self._with_terminal(lambda it: termios.tcsetattr(it, termios.TCSADRAIN, self._attributes))
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _with_terminal(self, use: Callable[[int], Any]) -> Any:  # noqa: ANN401 - as `termios`
        descriptor = os.open(self.path, os.O_RDWR | os.O_NOCTTY)
        try:
            return use(descriptor)
        finally:
            os.close(descriptor)
