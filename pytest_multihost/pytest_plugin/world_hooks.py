"""The hooks of a run that has worlds. Registered when the first multihost item is known.

Everything heavy hangs on this module, so a run without worlds never imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from pytest_multihost.pytest_plugin.item import convert, finish_report
from pytest_multihost.pytest_plugin.run import DEADLINE, RUN, Run
from pytest_multihost.pytest_plugin.tally import TALLY

PLATFORM = sys.platform

_NO_DEBUGGER = (
    "multihost: --pdb and --trace stop in ordinary tests only: a rank has no terminal."
    " Attach to one with py-spy or gdb, or run the test's body without the marker."
)


def start_worlds(session: pytest.Session, chosen: Sequence[pytest.Item]) -> None:
    """Plan the multihost items, start their server, and make them run in ranks.

    Raises:
        pytest.UsageError: A marker is wrong, or the server cannot be started.
    """
    config = session.config
    option = config.option
    run = Run(config, config.stash[TALLY])
    run.plan(chosen)
    if option.collectonly or getattr(option, "setupplan", False):
        return
    if PLATFORM != "linux":
        _skip_all(chosen)
        return
    config.stash[RUN] = run
    config.pluginmanager.register(sys.modules[__name__], "multihost_worlds")
    run.open(chosen)
    for item in chosen:
        convert(item)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.verbosity >= 0:
        reporter.write_line(_launch_line(run, len(chosen), len(session.items)))
        if option.usepdb or option.trace:
            reporter.write_line(_NO_DEBUGGER)


def _skip_all(items: Sequence[pytest.Item]) -> None:
    reason = f"multihost worlds need Linux (/proc, pidfds), this is {PLATFORM}"
    for item in items:
        item.add_marker(pytest.mark.skip(reason=reason))


def _launch_line(run: Run, chosen: int, collected: int) -> str:
    launch = run.describe_launch()
    return f"multihost: {chosen} of {collected} tests run as worlds of ranks, launch: {launch}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have the last word on the reports of our items."""
    report = yield
    finish_report(item, call, report)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers."""
    config.stash[RUN].close()


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:  # noqa: ANN401
    """Make pytest-timeout's limit the world's: its own would end pytest, not the ranks."""
    if item.nodeid not in item.config.stash[RUN].plans:
        return None
    item.stash[DEADLINE] = float(settings.timeout)
    return True


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """There is no timer to cancel for our items."""
    return True if DEADLINE in item.stash else None
