"""Write the pages for a browser; what goes wrong becomes a note and never a failure of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_multihost.model.diagnosis import Diagnosis
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.user_code import SourceContext
from pytest_multihost.model.verdict import Verdict
from pytest_multihost.outcome import Finding
from pytest_multihost.pytest_plugin.results.tally import Tally
from pytest_multihost.report import write_trace
from pytest_multihost.report.html import PAGE_NAME, PageModel, write_index, write_page


def report_on(
    result: WorldResult,
    finding: Finding,
    diagnosis: Diagnosis | None,
    *,
    verdict: Verdict,
    context: SourceContext,
    directory: Path,
) -> list[str]:
    """Write page and trace of a world that did not go well; return what went wrong with that."""
    if finding.outcome in ("passed", "skipped"):
        return []
    page = PageModel(
        result=result, finding=finding, diagnosis=diagnosis, verdict=verdict, context=context
    )
    writers: Mapping[str, Callable[[], object]] = {
        "trace.json": lambda: write_trace(directory, result, diagnosis, root=context.root),
        PAGE_NAME: lambda: write_page(directory, page),  # last: it lists the others
    }
    return [
        f"{result.spec.nodeid}: {name}: {problem}"
        for name, write in writers.items()
        if (problem := _problem_of(write))
    ]


def _problem_of(write: Callable[[], object]) -> str:
    """Write something, and return what went wrong with that, nothing if all is well."""
    try:
        write()
    except Exception as error:  # noqa: BLE001 - what cannot be written must not hide the verdict
        return f"{type(error).__name__}: {error}"
    return ""


def report_on_run(config: pytest.Config, tally: Tally) -> None:
    """Write the page of a run with worlds, where this process is the one that ends it."""
    if not tally.ran or tally.run_id is None or hasattr(config, "workerinput"):
        return
    run = tally.settings.artifacts / tally.run_id
    if problem := _problem_of(lambda: write_index(run)):
        tally.unwritten.append(f"{PAGE_NAME} of the run: {problem}")


def named_files(where: str, directory: Path) -> str:
    """Return what the page in the terminal says of an attempt's folder: first what to look at.

    Args:
        where: The folder as the reader knows it.
        directory: The folder.
    """
    return f"{where}/{PAGE_NAME}" if (directory / PAGE_NAME).is_file() else where
