"""Write the pages: the only module of this room that touches files."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from pytest_multihost.report.artifacts.folders import RunFolder
from pytest_multihost.report.html.page_model import PageModel
from pytest_multihost.report.html.pages import attempt_page, run_page
from pytest_multihost.report.html.render import Assets, display_text
from pytest_multihost.report.log_excerpt import LogExcerpt, read_log

PAGE_NAME = "report.html"

_SCRIPTS = ("lanes.js", "drawing.js", "selection.js", "page.js")
_ASSETS = Path(__file__).with_name("assets")
_AROUND = 4
_HEAD_BYTES, _TAIL_BYTES = 4_000, 12_000
_ALL_LOGS_BYTES = 500_000
"""Of all logs together, so that a page stays one that opens at once."""


def write_page(directory: Path, page: PageModel) -> Path:
    """Write the page of an attempt into its folder, and return where it is.

    Args:
        directory: The attempt's folder, with everything else already in it.
        page: What it shows; logs, source lines and names of files are read here.
    """
    read = replace(
        page,
        logs=tuple(_logs(directory, page.result.spec.size)),
        source_lines=tuple(_source_lines(page)),
        files=sorted(path.name for path in directory.iterdir() if path.is_file()),
    )
    return _write(directory / PAGE_NAME, attempt_page(read, _assets(*_SCRIPTS)))


def write_index(run: Path) -> Path:
    """Write the page of a run into its folder, and return where it is.

    Args:
        run: The run's folder, with its verdicts.jsonl.
    """
    verdicts = RunFolder(run.parent, run.name).verdicts()
    pages = frozenset(path.parent.name for path in run.glob(f"*/{PAGE_NAME}"))
    return _write(run / PAGE_NAME, run_page(run.name, verdicts, pages, _assets("index.js")))


def _write(path: Path, text: str) -> Path:
    """Write a file in one step: a reader sees the old one or the new one."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8", errors="replace")
        return new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@cache
def _assets(*scripts: str) -> Assets:
    texts = (_asset(name) for name in scripts)
    return Assets(style=_asset("report.css"), script="\n".join(texts))


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _logs(directory: Path, size: int) -> Iterator[LogExcerpt]:
    share = max(1_000, min(_HEAD_BYTES + _TAIL_BYTES, _ALL_LOGS_BYTES // size))
    for rank in range(size):
        log = read_log(directory / f"rank-{rank}.log", head=share // 4, tail=share - share // 4)
        yield replace(log, head=as_shown(log.head), tail=as_shown(log.tail))


def as_shown(text: str) -> str:
    """Return what a terminal would show in the end: of a progress bar, its last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return display_text("\n".join(lines))


def _source_lines(page: PageModel) -> Sequence[tuple[int, str]]:
    """Return the lines around the culprit's place, unless the file has changed since."""
    where = page.diagnosis.where if page.diagnosis else None
    if where is None:
        return ()
    lines = linecache.getlines(str(Path(page.context.root, where.file)))
    at = where.line
    if not 0 < at <= len(lines) or lines[at - 1].strip() != where.source:
        return ()
    return _block(lines, at)


def _block(lines: Sequence[str], at: int) -> list[tuple[int, str]]:
    """Return numbered lines around one of them, but none of the next function or class."""
    is_inside = lines[at - 1][:1].isspace()

    def begins_another(number: int) -> bool:
        line = lines[number - 1]
        return is_inside and bool(line.strip()) and not line[:1].isspace()

    first, last = at, at
    while first > max(1, at - _AROUND) and not begins_another(first):
        first -= 1  # the line that begins this one is shown
    while last < min(len(lines), at + _AROUND) and not begins_another(last + 1):
        last += 1
    block = [(number, lines[number - 1].rstrip()) for number in range(first, last + 1)]
    while not block[-1][1] and len(block) > 1:
        block.pop()
    return block
