"""Everything that is written of a world that went wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_multihost.blame import Judgement
from pytest_multihost.model.json_values import to_json
from pytest_multihost.model.verdict import Verdict
from pytest_multihost.report.artifacts import Attempt, build_verdict, write_attempt, write_facts
from pytest_multihost.report.html import PageModel, write_page
from pytest_multihost.report.trace import write_trace


def write_judged(
    directory: Path, judged: Judgement, about: Attempt
) -> tuple[Verdict, list[OSError]]:
    """Write facts, verdict, history, trace and page of a world.

    Args:
        directory: The attempt's folder, with the logs.
        judged: The world.
        about: The attempt.

    Returns:
        The verdict, and why some files could not be written: a full disk, say.
    """
    result, root = judged.result, judged.context.root
    verdict = build_verdict(judged, about)
    write: tuple[Callable[[], object], ...] = (  # the page last: it lists the others
        lambda: write_facts(directory, result, judged.finding.symptoms, about, root=root),
        lambda: write_attempt(
            directory, to_json(verdict), result.history, origin_s=result.started_s
        ),
        lambda: write_trace(directory, result, judged.diagnosis, root=root),
        lambda: write_page(directory, PageModel(judged=judged, verdict=verdict)),
    )
    problems = []
    for each in write:
        try:
            each()
        except OSError as error:
            problems.append(error)
    return verdict, problems
