"""Verdicts and pages derived again from artifacts alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.command.screen import page_of
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.json_values import Json, JsonObject, from_json, to_json
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.model.verdict import PlaceGroup, Verdict
from pytest_multihost.core.report import write_trace
from pytest_multihost.core.report.artifacts import (
    Attempt,
    RunFolder,
    build_verdict,
    read_artifact,
    rejudge,
    unusable,
)
from pytest_multihost.core.report.html import (
    PAGE_NAME,
    PageModel,
    write_index,
    write_page,
    write_sweep_page,
)
from pytest_multihost.core.report.text import page_sections
from pytest_multihost.extensions.flight import judge_dumps, read_dumps
from pytest_multihost.extensions.sweep.report import SWEEP_NAME, read_sweep

_SET_BY_EXPECTATION = frozenset({"status", "expected", "outcome", "reason"})
"""Fields that the controller, not the judge, changes for multihost_expect."""


def explain(directory: Path) -> tuple[str, list[str]]:
    """Return an attempt's page for the terminal, and the fields that differ from its verdict.

    Args:
        directory: The attempt's folder.

    Raises:
        MultihostError: The folder lacks a file that is needed.
    """
    again = rejudge(directory)
    finding = again.judged.finding
    lines = [f"{finding.outcome.upper()}  {finding.reason}"]
    for part in page_sections(again.judged, files=str(directory)):
        lines += [f"--- {part.title}", part.text]
    derived: JsonObject = json.loads(json.dumps(to_json(again.verdict)))
    is_expected = again.written.get("expected") is not None
    not_derived = _SET_BY_EXPECTATION if is_expected else frozenset({"expected"})
    not_derived |= {"hazards"}  # found in the slot pages, which are gone
    differences = [
        name
        for name in sorted((derived.keys() | again.written.keys()) - not_derived)
        if _without_sources(derived.get(name)) != _without_sources(again.written.get(name))
    ]
    return "\n".join(lines), differences


def _without_sources(value: Json) -> Json:
    """Return the value without the texts of source lines, which may have changed since."""
    if isinstance(value, Mapping):
        return {key: _without_sources(each) for key, each in value.items() if key != "source"}
    if isinstance(value, list):
        return [_without_sources(each) for each in value]
    return value


_SWEEPS = f"*/{SWEEP_NAME}"
_REMEDY = "Name the artifacts directory, by default .pytest_multihost, or a folder in it."


def rebuild(directory: Path) -> Iterator[Path | MultihostError]:
    """Write pages again, and yield the path of each, or why it cannot be made.

    Args:
        directory: Folder of an attempt, of a run, or the artifacts directory.

    Raises:
        MultihostError: Nothing in it has a page.
    """
    attempts: list[Path] = []
    for pattern in ("facts.json", "*/facts.json", "*/*/facts.json"):
        if not attempts:  # resolved, because latest is a link
            attempts = sorted({path.parent.resolve() for path in directory.glob(pattern)})
    indexes = [directory / "verdicts.jsonl", *directory.glob("*/verdicts.jsonl")]
    of_runs = {path.resolve().parent for path in indexes if path.exists()}
    runs = sorted({path.parent for path in attempts} | of_runs)
    if not attempts and not runs:
        raise MultihostError(
            f"there is nothing in {directory} that a page could be made of",
            seen="No facts.json of a test that failed, and no verdicts.jsonl of a run.",
            remedy=_REMEDY,
        )
    for each in attempts:
        try:
            yield _again(each)
        except OSError as error:
            yield MultihostError(f"{each}: its page cannot be written", seen=str(error))
        except MultihostError as error:
            yield error
    for run in runs:
        try:
            _, problems = RunFolder(run.parent, run.name).verdicts()
            yield from (unusable(run / "verdicts.jsonl", each) for each in problems)
            yield from _sweep_pages(run)
            yield write_index(run)
        except FileNotFoundError:
            continue  # a run whose folder was thinned out
        except OSError as error:
            yield MultihostError(f"{run}: its page cannot be written", seen=str(error))


def _sweep_pages(run: Path) -> Iterator[Path | MultihostError]:
    """Write the pages of a run's sweeps again."""
    for path in sorted(run.glob(_SWEEPS)):
        try:
            yield write_sweep_page(path.parent, read_sweep(path))
        except MultihostError as error:
            yield error


@dataclass(frozen=True, slots=True)
class _Places:
    """The part of a diagnosis that has source lines as they were at the time."""

    groups: tuple[PlaceGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class _WithPlaces:
    """The part of verdict.json that is read here."""

    diagnosis: _Places | None = None


def _again(directory: Path) -> Path:
    """Write the page and the trace of an attempt again, with the source lines of its verdict."""
    again = rejudge(directory)
    judged, context = again.judged, again.judged.context
    write_trace(directory, judged.result, judged.diagnosis, root=context.root)
    written = read_artifact(directory / "verdict.json", partial(from_json, _WithPlaces)).diagnosis
    known = {
        (f"{context.root}/{place.file}", place.line): place.source
        for group in (written.groups if written is not None else ())
        for place in group.frames
    }

    def source_of(file: str, line: int) -> str:
        return known.get((file, line)) or context.source_of(file, line)

    judged = replace(judged, context=replace(context, source_of=source_of))
    hazards = again.written.get("hazards")
    verdict = replace(again.verdict, hazards=hazards if isinstance(hazards, dict) else None)
    return write_page(directory, PageModel(judged=judged, verdict=verdict))


def last_page(directory: Path) -> Path:
    """Return the page of the last run's only test that went wrong, else the run's own page.

    Args:
        directory: The artifacts directory, or a folder in it.

    Raises:
        MultihostError: There is none.
    """
    latest = directory / "latest"
    run = latest if latest.exists() else directory
    if not (run / PAGE_NAME).exists() and (run / "verdicts.jsonl").exists():
        write_index(run)  # the run was killed before its end
    pages = sorted(run.glob(f"*/{PAGE_NAME}"))
    if len(pages) == 1:
        return pages[0]
    if (run / PAGE_NAME).exists():
        return run / PAGE_NAME
    raise MultihostError(
        f"there is no report in {directory}",
        seen=f"Neither {run / PAGE_NAME} nor a folder with one.",
        remedy=f"Run pytest first. {_REMEDY}",
    )


# A world explained from the dumps of its ranks' flight recorders.


def explain_dumps(directory: Path, *, prefix: str | None, into: Path | None, as_json: bool) -> int:
    """Print what follows from a folder of dumps; return 0, or 1 if nothing does.

    Args:
        directory: The folder.
        prefix: What the files' names begin with, if several kinds are there.
        into: A folder for verdict.json and report.html; None: nothing is written.
        as_json: Whether to print the verdict instead of the page.

    Raises:
        MultihostError: There are no dumps that can be used.
        OSError: Something cannot be written.
    """
    judged = judge_dumps(
        read_dumps(directory, prefix=prefix), str(directory), SourceContext(str(Path.cwd()))
    )
    verdict = _verdict(judged, directory)
    text = json.dumps(to_json(verdict), indent=2)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        (into / "verdict.json").write_text(f"{text}\n", encoding="utf-8")
        write_page(into, PageModel(judged=judged, verdict=verdict))
    sys.stdout.write(f"{text if as_json else page_of(judged, str(into or directory))}\n")
    return int(judged.diagnosis is None or judged.diagnosis.kind == "unknown")


def _verdict(judged: Judgement, directory: Path) -> Verdict:
    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    return build_verdict(judged, Attempt(now, directory.name, None, {}))
