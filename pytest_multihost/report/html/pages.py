"""The two kinds of pages: one for each attempt that hung or failed, one for each run."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_multihost import files
from pytest_multihost.model.verdict import JsonVerdict
from pytest_multihost.report.activity import merge_stacks
from pytest_multihost.report.artifacts import RunFolder
from pytest_multihost.report.html import sections
from pytest_multihost.report.html.page_model import PageModel, rank_groups
from pytest_multihost.report.html.render import display_text, render, script_json
from pytest_multihost.report.html.sweep_page import SWEEP_PAGE_NAME
from pytest_multihost.report.html.timeline import timeline_data
from pytest_multihost.report.logs import read_log

PAGE_NAME = "report.html"
_VERDICTS = "verdicts.jsonl"

_SCRIPTS = ("lanes.js", "drawing.js", "selection.js", "page.js")
_AROUND = 4
_HEAD_BYTES, _TAIL_BYTES = 4_000, 12_000
_ALL_LOGS_BYTES = 500_000
"""Maximum size of all logs together, so that a page opens without delay."""

_OUTCOMES = ("hung", "crashed", "failed", "error", "xfailed", "xpassed", "skipped", "passed")
"""Outcomes in the order in which a run's page lists them."""


def write_page(directory: Path, page: PageModel) -> Path:
    """Write the page of an attempt into its folder, and return its path.

    Args:
        directory: The attempt's folder, with all other files already in it.
        page: Its data; logs, source lines and names of files are read here.
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
    files.write(directory / PAGE_NAME, attempt_page(read, _page_above(directory)))
    return directory / PAGE_NAME


def _page_above(directory: Path) -> str:
    """Return the page that an attempt's page leads back to: its run's, or that of a sweep."""
    folder = directory.parent
    is_swept = not (folder / _VERDICTS).exists() and (folder.parent / _VERDICTS).exists()
    return SWEEP_PAGE_NAME if is_swept else PAGE_NAME


def write_index(run: Path) -> Path:
    """Write the page of a run into its folder, and return its path.

    Args:
        run: The run's folder, with its verdicts.jsonl.
    """
    verdicts, _ = RunFolder(run.parent, run.name).verdicts()
    pages = frozenset(path.parent.name for path in run.glob(f"*/{PAGE_NAME}"))
    sweeps = frozenset(path.parent.name for path in run.glob(f"*/{SWEEP_PAGE_NAME}"))
    files.write(run / PAGE_NAME, run_page(run.name, verdicts, pages, sweeps))
    return run / PAGE_NAME


def as_shown(text: str) -> str:
    """Return what a terminal would show in the end: only the last state of a progress bar."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return display_text("\n".join(lines))


def _source_lines(page: PageModel) -> Sequence[tuple[int, str]]:
    """Return the lines around the culprit's place, unless the file has changed since."""
    where = page.judged.diagnosis.where if page.judged.diagnosis else None
    if where is None:
        return ()
    lines = linecache.getlines(str(Path(page.judged.context.root, where.file)))
    at = where.line
    if not 0 < at <= len(lines) or lines[at - 1].strip() != where.source:
        return ()
    # Those around it, but none of the function or class before or after.
    numbers = range(max(1, at - _AROUND), min(len(lines), at + _AROUND) + 1)
    is_inside = lines[at - 1][:1].isspace()
    heads = [n for n in numbers if is_inside and lines[n - 1].strip() and lines[n - 1][0].strip()]
    first = max((n for n in heads if n <= at), default=numbers[0])
    last = min((n for n in heads if n > at), default=numbers[-1] + 1) - 1
    block = [(number, lines[number - 1].rstrip()) for number in range(first, last + 1)]
    while not block[-1][1] and len(block) > 1:
        block.pop()
    return block


def attempt_page(page: PageModel, above: str = PAGE_NAME) -> str:
    """Return the page of one attempt of one test.

    Args:
        page: Its data.
        above: The page in the folder above.
    """
    timeline = timeline_data(page)
    return render(
        "attempt.html.j2",
        _SCRIPTS,
        page=page,
        above=above,
        groups=rank_groups(page),
        merge_stacks=merge_stacks,
        sections=sections,
        left_out=timeline["left_out"],
        timeline_json=script_json(timeline),
    )


def run_page(
    run_id: str,
    verdicts: Sequence[JsonVerdict],
    pages: Collection[str],
    sweeps: Collection[str] = (),
) -> str:
    """Return the page of a run: every test that ran as a world, those that did not pass first.

    Args:
        run_id: The run's name.
        verdicts: The lines of its verdicts.jsonl.
        pages: Folders of attempts that have a page.
        sweeps: Folders of attempts that have the page of a sweep.
    """
    rows = sorted(
        ((_outcome(each), each) for each in verdicts), key=lambda row: _OUTCOMES.index(row[0])
    )
    counts = Counter(outcome for outcome, _ in rows)
    return render(
        "run.html.j2",
        ["index.js"],
        run_id=run_id,
        rows=rows,
        counts=[(outcome, counts[outcome]) for outcome in _OUTCOMES if counts[outcome]],
        pages=pages,
        sweeps=sweeps,
    )


def _outcome(verdict: JsonVerdict) -> str:
    """Return a test's status, or its world's outcome if that made it fail."""
    if verdict["status"] in ("failed", "error") and verdict["outcome"] in ("hung", "crashed"):
        return str(verdict["outcome"])
    return str(verdict["status"])
