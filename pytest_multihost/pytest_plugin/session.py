"""What happens once per run: take over the items, start the server, speak up at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_multihost.pytest_plugin.item import convert
from pytest_multihost.pytest_plugin.run import Run

PLATFORM = sys.platform


_NO_DEBUGGER = (
    "multihost: --pdb and --trace stop in ordinary tests only: a rank has no terminal."
    " Attach to one with py-spy or gdb, or run the test's body without the marker."
)


class PytestMultihostWarning(pytest.PytestWarning):
    """Worlds were asked for and none ran."""


def start_worlds(run: Run, session: pytest.Session) -> None:
    """Plan the multihost items, start their server, and make them run in ranks.

    Raises:
        pytest.UsageError: A marker is wrong, or the server cannot be started.
    """
    chosen = run.plan(session.items)
    option = run.config.option
    if not chosen or option.collectonly or getattr(option, "setupplan", False):
        return
    if PLATFORM != "linux":
        _skip_all(chosen)
        return
    run.open(chosen)
    for item in chosen:
        convert(item)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
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


def require_worlds(run: Run, session: pytest.Session) -> None:
    """Warn, or fail the run, when worlds were asked for and none ran."""
    if hasattr(run.config, "workerinput"):  # the controller adds up what its workers did
        worker: Any = run.config
        worker.workeroutput["multihost"] = {"selected": run.selected, "ran": run.ran}
        return
    message = _missing(run)
    if message is None or run.config.option.collectonly or session.shouldstop:
        return
    if run.defaults.is_required:
        run.fatal = message
    else:
        try:
            warning = PytestMultihostWarning(message)
            run.config.issue_config_time_warning(warning, stacklevel=2)
        except PytestMultihostWarning:  # -W error
            run.fatal = message
    if run.fatal and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _missing(run: Run) -> str | None:
    if run.ran:
        return None
    if run.selected:
        return f"{run.selected} multihost tests were selected and none ran"
    if run.defaults.asked:
        return "--ranks was given, but no selected test is marked with @pytest.mark.multihost"
    if run.defaults.is_required:
        return "multihost_require is set, but no selected test is multihost"
    return None


def summarize(reporter: pytest.TerminalReporter, run: Run) -> None:
    """Write why the run fails although no test did."""
    if run.fatal:
        reporter.write_sep("=", "multihost", red=True, bold=True)
        reporter.write_line(f"FAILED: {run.fatal}", red=True)
