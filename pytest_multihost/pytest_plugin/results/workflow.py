"""In a workflow of GitHub Actions: annotations and a summary at the end of the run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_multihost.pytest_plugin.tally import Tally
from pytest_multihost.report import Checkout, append_summary, error_commands
from pytest_multihost.report.artifacts import RunFolder


def annotate_workflow(reporter: pytest.TerminalReporter, tally: Tally) -> None:
    """Write errors at the culprits' lines, and add the verdicts to the summary of the step.

    Under pytest-xdist only the controller does: its workers have written their verdicts.
    """
    if hasattr(reporter.config, "workerinput"):
        return
    verdicts = []
    if tally.run_id is not None:
        with suppress(OSError):  # they could not be written; that has been reported
            verdicts = RunFolder(tally.settings.artifacts, tally.run_id).verdicts()
    checkout = Checkout(
        root=os.path.realpath(reporter.config.rootpath),
        workspace=os.path.realpath(os.environ.get("GITHUB_WORKSPACE", reporter.config.rootpath)),
    )
    for command in error_commands(verdicts, checkout):
        reporter.ensure_newline()
        reporter.write_line(command)
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and verdicts:
        try:
            append_summary(Path(path), verdicts)
        except OSError as error:
            reporter.write_line(f"multihost: the summary of the step: {error}", yellow=True)
