"""What is counted in every run, with or without worlds, and said at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_multihost.core.pytest_plugin.options import Settings

if TYPE_CHECKING:
    from pytest_multihost.core.model.verdict import JsonVerdict
    from pytest_multihost.extensions.sweep.result import SweepResult


class PytestMultihostWarning(pytest.PytestWarning):
    """Worlds were asked for and none ran."""


@dataclass(slots=True)
class Tally:
    """What one run of pytest amounts to.

    Attributes:
        settings: What holds where markers say nothing.
        run_id: Name of the run; the same in all processes of pytest-xdist.
        selected: How many multihost items were selected, xdist's workers included.
        ran: How many worlds were started, xdist's workers included.
        fatal: Why the run is to fail although no test did.
        unwritten: Artifacts that could not be written, and why.
        points: What is to be shown of the points that ranks have passed.
        swept: What sweeps have shown, a line for each.
    """

    settings: Settings
    run_id: str | None = None
    selected: int = 0
    ran: int = 0
    fatal: str | None = None
    unwritten: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Note what goes wrong with writing artifacts: it must not hide the verdict."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as said
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self.unwritten.append(f"{what}: {text}")


TALLY = pytest.StashKey[Tally]()


def end_run(tally: Tally, session: pytest.Session) -> None:
    """Write the run's page; warn, or fail the run, when worlds were asked for and none ran."""
    config = session.config
    if hasattr(config, "workerinput"):  # the controller adds up what its workers did
        worker: Any = config
        summed = ("selected", "ran", "unwritten", "points", "swept")
        worker.workeroutput["multihost"] = {name: getattr(tally, name) for name in summed}
        return
    if tally.ran and tally.run_id is not None:
        from pytest_multihost.core.report.html import write_index

        with tally.noting("the run's page"):
            write_index(tally.settings.artifacts / tally.run_id)
    message = _missing(tally)
    if message is None or config.option.collectonly or session.shouldstop:
        return
    if tally.settings.is_required:
        tally.fatal = message
    else:
        try:
            warning = PytestMultihostWarning(message)
            config.issue_config_time_warning(warning, stacklevel=2)
        except PytestMultihostWarning:  # -W error
            tally.fatal = message
    ended = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if tally.fatal and session.exitstatus in ended:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _missing(tally: Tally) -> str | None:
    if tally.ran:
        return None
    if tally.selected:
        return f"{tally.selected} multihost tests were selected and none ran"
    if tally.settings.has_ranks_option:
        return "--ranks was given, but no selected test is marked with @pytest.mark.multihost"
    if tally.settings.is_required:
        return "multihost_require is set, but no selected test is multihost"
    return None


def summarize(reporter: pytest.TerminalReporter, tally: Tally) -> None:
    """Write why the run fails although no test did, and which artifacts are missing."""
    for line in (*tally.points, *tally.swept):
        reporter.write_line(line)
    if tally.unwritten:
        count, first = len(tally.unwritten), tally.unwritten[0]
        message = f"multihost: {count} artifacts could not be written. First: {first}"
        reporter.write_line(message, yellow=True)
    if tally.fatal:
        reporter.write_sep("=", "multihost", red=True, bold=True)
        reporter.write_line(f"FAILED: {tally.fatal}", red=True)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        _annotate_workflow(reporter, tally)


def _annotate_workflow(reporter: pytest.TerminalReporter, tally: Tally) -> None:
    """Write errors at the culprits' lines, and add the verdicts to the summary of the step."""
    from pytest_multihost.core.report import Checkout, append_summary, error_commands
    from pytest_multihost.core.report.artifacts import RunFolder
    from pytest_multihost.extensions.hazards.report import append_hazard_summary, hazard_commands
    from pytest_multihost.extensions.sweep.report import (
        append_sweep_summary,
        sweep_commands,
        sweeps_of,
    )

    verdicts: list[JsonVerdict] = []
    sweeps: list[SweepResult] = []
    if tally.run_id is not None:
        folder = RunFolder(tally.settings.artifacts, tally.run_id)
        sweeps = sweeps_of(folder.path)
        with suppress(OSError):  # they could not be written; that has been reported
            verdicts, _ = folder.verdicts()
    root = os.path.realpath(reporter.config.rootpath)
    workspace = os.path.realpath(os.environ.get("GITHUB_WORKSPACE", root))
    checkout = Checkout(root, workspace)
    commands = (
        *error_commands(verdicts, checkout),
        *sweep_commands(sweeps, checkout),
        *hazard_commands(verdicts, checkout),
    )
    for command in commands:
        reporter.ensure_newline()
        reporter.write_line(command)
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and verdicts:
        try:
            append_summary(Path(path), verdicts)
            append_sweep_summary(Path(path), sweeps)
            append_hazard_summary(Path(path), verdicts)
        except OSError as error:
            reporter.write_line(f"multihost: the summary of the step: {error}", yellow=True)
