"""Write the results of an attempt and of a run: artifacts, pages, annotations of a workflow.

What cannot be written is noted, and never fails a test.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from pytest_multihost.blame import Judgement
from pytest_multihost.model.json_values import to_json
from pytest_multihost.model.verdict import Verdict
from pytest_multihost.outcome import Symptoms
from pytest_multihost.pytest_plugin.tally import Tally
from pytest_multihost.report import Checkout, append_summary, error_commands, write_trace
from pytest_multihost.report.artifacts import (
    Attempt,
    RunFolder,
    build_verdict,
    write_attempt,
    write_facts,
)
from pytest_multihost.report.html import PAGE_NAME, PageModel, write_index, write_page


@dataclass(frozen=True, slots=True)
class CompletedAttempt:
    """One attempt of one item, when its world is over.

    Attributes:
        judged: The judged world.
        directory: Where its artifacts are.
        proven_hang: What proved a hang whose deadline was waited for: multihost_early = warn.
    """

    judged: Judgement
    directory: Path
    proven_hang: str | None

    @property
    def files(self) -> str:
        """What the page in the terminal says of the folder: the page for a browser, if any."""
        root, directory = Path(self.judged.context.root), self.directory
        where = directory.relative_to(root) if directory.is_relative_to(root) else directory
        return str(where / PAGE_NAME if (directory / PAGE_NAME).is_file() else where)


def write_artifacts(
    attempt: CompletedAttempt, folder: RunFolder, symptoms: Symptoms, *, is_expected: bool | None
) -> list[str]:
    """Write everything that is known of an attempt; return what could not be written, and why.

    Args:
        attempt: What is known.
        folder: The run's folder.
        symptoms: How failures look that follow from another rank's.
        is_expected: Whether it came out as `multihost_expect` says; None without one.
    """
    judged, directory = attempt.judged, attempt.directory
    result, finding = judged.result, judged.finding
    about = Attempt(
        run_id=folder.run_id,
        directory=directory.name,
        worker=os.environ.get("PYTEST_XDIST_WORKER"),
        environment=_versions(),
    )
    verdict = replace(build_verdict(judged, about), expected=is_expected)
    went_well = finding.outcome in ("passed", "skipped")
    try:
        if not went_well:
            write_facts(directory, result, symptoms, about, root=judged.context.root)
        write_attempt(directory, to_json(verdict), result.history, origin_s=result.started_s)
        folder.append_verdict(to_json(verdict))
    except OSError as error:
        return [f"{result.spec.nodeid}: {error}"]
    return [] if went_well else _write_pages(attempt, verdict)


def _write_pages(attempt: CompletedAttempt, verdict: Verdict) -> list[str]:
    """Write trace and page of an attempt that did not go well; return what could not be written."""
    judged, directory = attempt.judged, attempt.directory
    result, diagnosis, root = judged.result, judged.diagnosis, judged.context.root
    page = PageModel(judged=judged, verdict=verdict)
    problems = [
        *_tried("trace.json", lambda: write_trace(directory, result, diagnosis, root=root)),
        *_tried(PAGE_NAME, lambda: write_page(directory, page)),  # last: it lists the others
    ]
    return [f"{result.spec.nodeid}: {problem}" for problem in problems]


def write_run_page(config: pytest.Config, tally: Tally) -> None:
    """Write the page of a run with worlds, where this process is the one that ends it."""
    if tally.run_id is None or hasattr(config, "workerinput"):
        return
    run = tally.settings.artifacts / tally.run_id
    tally.unwritten += _tried(f"{PAGE_NAME} of the run", lambda: write_index(run))


def _tried(name: str, write: Callable[[], object]) -> Iterator[str]:
    """Write something, and yield what went wrong with that, if anything did."""
    try:
        write()
    except Exception as error:  # noqa: BLE001 - what cannot be written must not hide the verdict
        yield f"{name}: {type(error).__name__}: {error}"


@cache
def _versions() -> Mapping[str, str | None]:
    """Return the versions that a verdict depends on."""
    packages = {name: _version(name) for name in ("pytest", "torch", "jax")}
    return {"python": platform.python_version(), "platform": sys.platform, **packages}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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
