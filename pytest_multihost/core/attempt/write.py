"""Writes the records of an attempt: verdict, history, facts, extensions' files, and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.verdict import Verdict
from pytest_multihost.core.report.artifacts import Attempt, RunFolder, write_attempt, write_facts
from pytest_multihost.core.report.html import PAGE_NAME, PageModel, write_page
from pytest_multihost.core.report.renderer import Renderer

Problem = tuple[str, Exception]
"""A file that could not be written, and the error: a full disk, for example."""


def write(
    directory: Path,
    judged: Judgement,
    verdict: Verdict,
    about: Attempt,
    renderers: Sequence[Renderer] | None,
    *,
    run: RunFolder | None,
) -> list[Problem]:
    """Write the records of an attempt; return the problems.

    Args:
        directory: The attempt's folder, with the logs.
        renderers: The writers of the page's parts; None: no page and no facts are written, because
            an attempt that passed needs no explanation.
        run: The run whose list of verdicts gets a line; None: there is no such list.
    """
    result, root, record = judged.result, judged.context.root, verdict.record()

    def steps() -> Iterator[tuple[str, Callable[[], object]]]:
        if renderers is not None:
            symptoms = judged.finding.symptoms
            yield "", lambda: write_facts(directory, result, symptoms, about, root=root)
        origin_s = result.started_s
        yield "", lambda: write_attempt(directory, record, result.history, origin_s=origin_s)
        if run is not None:
            yield "", lambda: run.append_verdict(record)
        if renderers is not None:
            for each in renderers:
                if each.write is not None:
                    yield each.name, partial(each.write, directory, judged)
            # Last, because it lists the other files.
            page = PageModel(judged=judged, verdict=verdict)
            yield PAGE_NAME, lambda: write_page(directory, page, renderers)

    problems = []
    for name, step in steps():
        try:
            step()
        except Exception as error:  # noqa: BLE001 - no error may hide the verdict
            problems.append((name, error))
    return problems
