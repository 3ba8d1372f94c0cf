"""The debugger in ranks, on the terminal of pytest: --pdb, --trace, breakpoint().

* `service` decides which rank gets the terminal, and `messages` has its settings and messages.
* `in_pytest` finds the terminal and lends it, and ends a run whose user has quit.
* `in_rank` makes the debugger of a rank use it.
* `lent_terminal` restores it if pytest is killed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
    from pytest_multihost.core.services import ServiceKind


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option that names the only rank that stops."""
    from pytest_multihost.core.option import parse_rank

    group = parser.getgroup("multihost", "tests on several ranks")
    text = "Stop only this rank in the debugger (--pdb, --trace, breakpoint())"
    group.addoption("--multihost-pdb-rank", type=parse_rank, metavar="RANK", help=text)


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the service that lends the terminal."""
    from pytest_multihost.extensions.debugger.service import DEBUGGER

    return [DEBUGGER]


@hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Find the terminal of a run with worlds; say why --pdb and --trace do not stop in ranks.

    Raises:
        pytest.UsageError: No world has the rank that the user has named.
    """
    from pytest_multihost.core.pytest_plugin.tally import TALLY

    if session.config.stash[TALLY].selected:
        from pytest_multihost.extensions.debugger.in_pytest import begin_run

        begin_run(session.config)


@hookimpl(wrapper=True)
def pytest_multihost_prepare(item: pytest.Item) -> Generator[None, WorldSpec, WorldSpec]:
    """Let the ranks of a test borrow the terminal."""
    from pytest_multihost.extensions.debugger.in_pytest import with_debugger

    return with_debugger(item, (yield))


@hookimpl(tryfirst=True)
def pytest_multihost_explore(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """End the run if the user has quit the debugger in a rank."""
    from pytest_multihost.extensions.debugger.in_pytest import end_if_quit

    end_if_quit(item, attempt)
