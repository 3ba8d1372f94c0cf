"""Writes the two kinds of pages: one for each attempt that hung or failed, one for each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.model.verdict import JsonVerdict, run_headline, run_word
from pytest_multihost.core.report import ground
from pytest_multihost.core.report.artifacts import (
    RunFolder,
)
from pytest_multihost.core.report.html import sections
from pytest_multihost.core.report.html.render import display_text, render, script_json
from pytest_multihost.core.report.html.sections import PageModel, rank_groups
from pytest_multihost.core.report.html.timeline import timeline_data
from pytest_multihost.core.report.layout import merge_stacks, stack_notes
from pytest_multihost.core.report.logs import read_log
from pytest_multihost.core.report.renderer import Renderer, RowPart

PAGE_NAME = "report.html"
_VERDICTS = "verdicts.jsonl"
_OF_RUN = ("All tests of this run", PAGE_NAME)

_SCRIPTS = ("lanes.js", "drawing.js", "selection.js", "page.js")
_AROUND = 4
_HEAD_BYTES, _TAIL_BYTES = 4_000, 12_000
_ALL_LOGS_BYTES = 500_000
"""Maximum size of all logs together; a page of that size opens without delay."""

_OUTCOMES = (
    "hung",
    "crashed",
    "exited",
    "failed",
    "error",
    "xfailed",
    "xpassed",
    "skipped",
    "passed",
)
"""Outcomes in the order in which a run's page lists them."""


def write_page(directory: Path, page: PageModel, renderers: Sequence[Renderer] = ()) -> Path:
    """Write the page of an attempt into its folder, and return its path.

    Args:
        directory: The attempt's folder, with all other files already in it.
        page: The data, without logs, source lines and names of files, which are read here.
    """
    size = page.judged.result.spec.size
    share = max(1_000, min(_HEAD_BYTES + _TAIL_BYTES, _ALL_LOGS_BYTES // size))
    logs = (
        read_log(directory / f"rank-{rank}.log", head=share // 4, tail=share - share // 4)
        for rank in range(size)
    )
    read = replace(
        page,
        logs=[replace(log, head=as_shown(log.head), tail=as_shown(log.tail)) for log in logs],
        source_lines=tuple(_source_lines(page)),
        files=sorted(path.name for path in directory.iterdir() if path.is_file()),
    )
    files.write(directory / PAGE_NAME, attempt_page(read, _above(directory, renderers), renderers))
    return directory / PAGE_NAME


def _above(directory: Path, renderers: Sequence[Renderer]) -> tuple[str, str]:
    """Return the name and the file of the page that an attempt's page links back to."""
    folder = directory.parent
    is_further = not (folder / _VERDICTS).exists() and (folder.parent / _VERDICTS).exists()
    overviews = (each.overview for each in renderers if is_further and each.overview is not None)
    return next(overviews, _OF_RUN)


def write_index(run: Path, renderers: Sequence[Renderer] = ()) -> Path:
    """Write the page of a run into its folder, and return its path.

    Args:
        run: The run's folder, with its verdicts.jsonl.
    """
    verdicts, _ = RunFolder(run.parent, run.name).verdicts()
    pages = frozenset(path.parent.name for path in run.glob(f"*/{PAGE_NAME}"))
    of_rows = [each.row for each in renderers if each.row is not None]
    parts = [[row(run, verdict) for row in of_rows] for verdict in verdicts]
    files.write(run / PAGE_NAME, run_page(run.name, verdicts, pages, parts))
    return run / PAGE_NAME


def as_shown(text: str) -> str:
    """Return a text as a terminal would finally show it: only the last state of a progress bar."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return display_text("\n".join(lines))


def _source_lines(page: PageModel) -> Sequence[tuple[int, str]]:
    """Return the lines around the culprit's place, unless the file has changed since."""
    where = page.judged.diagnosis.where if page.judged.diagnosis else None
    if where is None:
        return ()
    context = page.judged.context
    lines = context.lines_of(str(Path(context.root, where.file)))
    at = where.line
    if not 0 < at <= len(lines) or lines[at - 1].strip() != where.source:
        return ()
    # Lines around the place, except those of the function or class before or after it.
    numbers = range(max(1, at - _AROUND), min(len(lines), at + _AROUND) + 1)
    is_inside = lines[at - 1][:1].isspace()
    heads = [n for n in numbers if is_inside and lines[n - 1].strip() and lines[n - 1][0].strip()]
    first = max((n for n in heads if n <= at), default=numbers[0])
    last = min((n for n in heads if n > at), default=numbers[-1] + 1) - 1
    block = [(number, lines[number - 1].rstrip()) for number in range(first, last + 1)]
    while not block[-1][1] and len(block) > 1:
        block.pop()
    return block


def attempt_page(
    page: PageModel, above: tuple[str, str] = _OF_RUN, renderers: Sequence[Renderer] = ()
) -> str:
    """Return the page of one attempt of one test.

    Args:
        above: The name and the file of the page in the folder above.
    """
    timeline = timeline_data(page)
    verdict = page.verdict.record()
    of_pages = [each.section for each in renderers if each.section is not None]
    return render(
        "attempt.html.j2",
        _SCRIPTS,
        page=page,
        above=above,
        names=page.judged.result.spec.names,
        groups=rank_groups(page),
        merge_stacks=merge_stacks,
        stack_notes=stack_notes,
        sections=sections,
        grounds=ground,
        extra=[found for each in of_pages if (found := each(verdict)) is not None],
        extra_files={name: text for each in renderers for name, text in each.files.items()},
        left_out=timeline["left_out"],
        timeline_json=script_json(timeline),
    )


def run_page(
    run_id: str,
    verdicts: Sequence[JsonVerdict],
    pages: Collection[str],
    parts: Sequence[Sequence[RowPart]] = (),
) -> str:
    """Return the page of a run: every test that ran as a world, tests that did not pass first.

    Args:
        pages: Folders of attempts that have a page.
        parts: For each verdict, the extensions' parts of its row; empty if there are none.
    """
    shown = parts or [()] * len(verdicts)
    rows = sorted(
        ((run_word(verdict), verdict, part) for verdict, part in zip(verdicts, shown, strict=True)),
        key=lambda row: _OUTCOMES.index(row[0]),
    )
    counts = Counter(outcome for outcome, _, _ in rows)
    return render(
        "run.html.j2",
        ["index.js"],
        run_id=run_id,
        rows=rows,
        counts=[(outcome, counts[outcome]) for outcome in _OUTCOMES if counts[outcome]],
        pages=pages,
        run_headline=run_headline,
    )
