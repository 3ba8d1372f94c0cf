"""Derives verdicts and pages again from artifacts alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from pytest_multihost.core.attempt import rejudge
from pytest_multihost.core.backends import offered_backends, symptoms_of
from pytest_multihost.core.files import artifacts_folder
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.json_values import Json, JsonObject, from_json
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.source import SourceFiles, files_below
from pytest_multihost.core.model.verdict import PlaceGroup
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.core.report.artifacts import (
    RunFolder,
    read_artifact,
    unusable,
)
from pytest_multihost.core.report.html import PAGE_NAME, PageModel, write_index, write_page
from pytest_multihost.core.report.renderer import Renderer
from pytest_multihost.core.report.text import page_sections

_SET_BY_EXPECTATION = frozenset({"status", "expected", "outcome", "reason"})
"""Fields that multihost_expect changes after the judgement, so they cannot be derived again."""


def explain(directory: Path, sources: SourceFiles) -> tuple[str, list[str]]:
    """Return an attempt's page for the terminal, and the fields that differ from its verdict.

    Args:
        sources: The source files that may be read.

    Raises:
        MultihostError: A file is missing or unusable.
    """
    again = rejudge(directory, sources, known_symptoms())
    finding = again.judged.finding
    lines = [f"{finding.word.upper()}  {printable(finding.reason)}"]
    for part in page_sections(again.judged, files=str(directory), quotes_file=True):
        lines += [f"--- {printable(part.title)}", part.text]
    if again.unknown_symptoms:
        lines.append(
            f"{len(again.unknown_symptoms)} patterns of errors in facts.json were"
            " ignored, because no"
            " backend that is installed here defines them"
        )
    derived: JsonObject = json.loads(json.dumps(again.verdict.record()))
    is_expected = again.written.get("expected") is not None
    not_derived = _SET_BY_EXPECTATION if is_expected else frozenset({"expected"})
    differences = [
        name
        # Analyses are not compared, because they read more than facts.json.
        for name in sorted(derived.keys() - not_derived)
        if _without_sources(derived.get(name)) != _without_sources(again.written.get(name))
    ]
    return "\n".join(lines), differences


@lru_cache(1)
def known_symptoms() -> Symptoms:
    """Return the patterns of failures of all backends that this installation offers."""
    return symptoms_of(offered_backends(new_plugin_manager().hook))


def failed_attempt(directory: Path, *, folders: str) -> Path:
    """Return the folder of the only attempt with a verdict to explain in a folder.

    Args:
        directory: Folder of an attempt, of a run, the artifacts directory, or a folder that has
            ``.pytest_multihost``; ``latest`` is the last run in the artifacts directory.
        folders: The other things that can be explained, for the error.

    Raises:
        MultihostError: There is no such attempt, or there are several.
    """
    if directory == Path("latest") and not directory.exists():
        directory = artifacts_folder() / "latest"
    if (directory / "verdict.json").exists():
        return directory
    places = (directory / ".pytest_multihost/latest", directory / "latest", directory)
    run = next(place for place in places if place.exists() or place == directory)
    found = sorted(path.parent for path in run.glob("*/facts.json"))
    if len(found) == 1:
        return found[0]
    if found:
        raise MultihostError(
            f"{len(found)} tests failed in {directory}",
            seen="\n".join(f"  multihost explain {shlex.quote(str(each))}" for each in found),
            remedy="Name one of them.",
        )
    if directory.is_file():
        raise MultihostError(
            f"{directory} is a file, and multihost explain reads folders",
            remedy=f"Name latest (the newest run), a run's folder, or a folder {folders}.",
        )
    raise MultihostError(
        f"there is nothing to explain in {directory}",
        seen="It has no facts.json of a test that failed.",
        remedy=f"Name latest (the newest run), a run's folder, or a folder {folders}.",
    )


def _without_sources(value: Json) -> Json:
    """Return the value without the texts of source lines, whose files may have changed since."""
    if isinstance(value, Mapping):
        return {key: _without_sources(each) for key, each in value.items() if key != "source"}
    if isinstance(value, list):
        return [_without_sources(each) for each in value]
    return value


_REMEDY = "Name the artifacts directory, by default .pytest_multihost, or a folder in it."


def rebuild(
    directory: Path, renderers: Sequence[Renderer], sources: SourceFiles | None = None
) -> Iterator[Path | MultihostError]:
    """Write pages again, and yield the path of each, or the error that prevents it.

    Args:
        directory: Folder of an attempt, of a run, or the artifacts directory.
        sources: The source files that may be read; None: the default ones.

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
            f"{directory} holds nothing to make a page from",
            seen="No facts.json of a test that failed, and no verdicts.jsonl of a run.",
            remedy=_REMEDY,
        )
    for each in attempts:
        try:
            yield _again(each, renderers, sources or files_below(None))
        except OSError as error:
            yield MultihostError(f"{each}: its page cannot be written", seen=str(error))
        except MultihostError as error:
            yield error
    for run in runs:
        yield from _pages_of(run, renderers)


def _pages_of(run: Path, renderers: Sequence[Renderer]) -> Iterator[Path | MultihostError]:
    """Write the pages of a run again, except those of attempts."""
    try:
        _, problems = RunFolder(run.parent, run.name).verdicts()
        yield from (unusable(run / "verdicts.jsonl", each) for each in problems)
        for renderer in renderers:
            if renderer.rebuild is not None:
                yield from renderer.rebuild(run)
        yield write_index(run, renderers)
    except FileNotFoundError:
        return  # files of the run were deleted meanwhile
    except OSError as error:
        yield MultihostError(f"{run}: its page cannot be written", seen=str(error))


@dataclass(frozen=True, slots=True)
class _Places:
    """The part of a diagnosis with the source lines as they were at the time."""

    groups: tuple[PlaceGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class _WithPlaces:
    """The part of verdict.json that this module reads."""

    diagnosis: _Places | None = None


def _again(directory: Path, renderers: Sequence[Renderer], sources: SourceFiles) -> Path:
    """Write the pages of an attempt again, with the source lines of its verdict."""
    again = rejudge(directory, sources, known_symptoms())
    judged, context = again.judged, again.judged.context
    for each in renderers:
        if each.write is not None:
            each.write(directory, judged)
    written = read_artifact(directory / "verdict.json", partial(from_json, _WithPlaces)).diagnosis
    known = {
        (f"{context.root}/{place.file}", place.line): place.source
        for group in (written.groups if written is not None else ())
        for place in group.frames
    }

    def source_of(file: str, line: int) -> str:
        return known.get((file, line)) or context.source_of(file, line)

    judged = replace(judged, context=replace(context, source_of=source_of))
    derived = again.verdict.record().keys()
    analyses = {
        name: value
        for name, value in again.written.items()
        if name not in derived and isinstance(value, dict)
    }
    verdict = replace(again.verdict, analyses=analyses)
    page = PageModel(judged=judged, verdict=verdict, is_of_file=True)
    return write_page(directory, page, renderers)


def last_page(directory: Path, renderers: Sequence[Renderer]) -> Path:
    """Return the page of the last run's only failed test, else the run's own page.

    Args:
        directory: The artifacts directory, or a folder in it.

    Raises:
        MultihostError: There is no page.
    """
    latest = directory / "latest"
    run = latest if latest.exists() else directory
    if not (run / PAGE_NAME).exists() and (run / "verdicts.jsonl").exists():
        write_index(run, renderers)
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
