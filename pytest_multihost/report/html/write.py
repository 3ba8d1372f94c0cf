"""Write the pages: the only module of this room that touches files."""

from __future__ import annotations

import json
import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

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
        page: What is to be told; logs, excerpt and files are read here.
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
    verdicts = list(_verdicts(run / "verdicts.jsonl"))
    pages = frozenset(path.parent.name for path in run.glob(f"*/{PAGE_NAME}"))
    return _write(run / PAGE_NAME, run_page(run.name, verdicts, pages, _assets("index.js")))


def _write(path: Path, text: str) -> Path:
    """Write a file in one step: whoever looks sees the old one or the new one."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8", errors="replace")
        return new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _verdicts(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


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
    """Return lines around one of them, but none of the next function or class."""
    is_inside = lines[at - 1][:1].isspace()
    found = [(at, lines[at - 1].rstrip())]
    for n in range(at - 1, max(0, at - 1 - _AROUND), -1):
        found.insert(0, (n, lines[n - 1].rstrip()))
        if is_inside and not lines[n - 1][:1].isspace() and lines[n - 1].strip():
            break
    for n in range(at + 1, min(len(lines), at + _AROUND) + 1):
        if is_inside and not lines[n - 1][:1].isspace() and lines[n - 1].strip():
            break
        found.append((n, lines[n - 1].rstrip()))
    while found[-1][1] == "":
        found.pop()
    return found
