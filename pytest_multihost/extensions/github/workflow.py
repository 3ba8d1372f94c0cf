"""Annotates a workflow of GitHub Actions at the end of a run of pytest."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_multihost.core.model.verdict import JsonVerdict
from pytest_multihost.core.pytest_plugin.options import artifacts_directory
from pytest_multihost.core.pytest_plugin.tally import TALLY
from pytest_multihost.core.registry import offered_renderers
from pytest_multihost.core.report.artifacts import RunFolder
from pytest_multihost.extensions.github.annotations import Checkout, all_commands
from pytest_multihost.extensions.github.summary import append_summaries


def annotate_workflow(reporter: pytest.TerminalReporter) -> None:
    """Write errors at the culprits' lines, and add the verdicts to the summary of the step."""
    config = reporter.config
    tally = config.stash[TALLY]
    if tally.run_id is None:
        return
    folder = RunFolder(artifacts_directory(config, tally.settings), tally.run_id)
    verdicts: list[JsonVerdict] = []
    with suppress(OSError):  # they could not be written; that has been reported
        verdicts, _ = folder.verdicts()
    renderers = offered_renderers(config.hook)
    root = os.path.realpath(config.rootpath)
    workspace = os.path.realpath(os.environ.get("GITHUB_WORKSPACE", root))
    for command in all_commands(folder.path, verdicts, renderers, Checkout(root, workspace)):
        reporter.ensure_newline()
        reporter.write_line(command)
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and verdicts:
        try:
            append_summaries(Path(path), folder.path, verdicts, renderers)
        except OSError as error:
            reporter.write_line(f"multihost: the summary of the step: {error}", yellow=True)
