"""In a workflow of GitHub Actions: tell it of the worlds that failed, at the end of the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.pytest_plugin.tally import Tally
from pytest_multihost.report import Checkout, append_summary, error_commands


def annotate_workflow(reporter: pytest.TerminalReporter, tally: Tally) -> None:
    """Write errors at the culprits' lines, and add the verdicts to the summary of the step.

    Only whoever reports: workers of pytest-xdist have written their verdicts for it.
    """
    if hasattr(reporter.config, "workerinput"):
        return
    verdicts = _read(tally)
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


def _read(tally: Tally) -> list[dict[str, Any]]:
    """Return the verdicts of this run; none if it had no worlds, or could not write them."""
    if tally.run_id is None:
        return []
    try:
        file = tally.settings.artifacts / tally.run_id / "verdicts.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [json.loads(line) for line in lines]
