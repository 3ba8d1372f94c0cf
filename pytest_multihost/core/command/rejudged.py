"""Verdicts and pages derived again from artifacts alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.command.screen import page_of
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.json_values import Json, JsonObject, from_json
from pytest_multihost.core.model.operation import group_by_value, rank_numbers
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.model.verdict import PlaceGroup, Verdict
from pytest_multihost.core.registry import new_plugin_manager, offered_renderers
from pytest_multihost.core.report.artifacts import (
    Attempt,
    RunFolder,
    attempt_name,
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
)
from pytest_multihost.core.report.renderer import Renderer
from pytest_multihost.core.report.text import page_sections
from pytest_multihost.extensions.flight.recording import read_dumps
from pytest_multihost.extensions.flight.told_world import judge_dumps
from pytest_multihost.extensions.github.report import (
    Checkout,
    annotation_commands,
    append_page,
)
from pytest_multihost.extensions.sweep.file_names import SWEEP_NAME
from pytest_multihost.extensions.sweep.html import write_sweep_page
from pytest_multihost.extensions.sweep.plan import merge_results
from pytest_multihost.extensions.sweep.report import (
    read_sweep,
    sweep_annotations,
    sweep_section,
    sweep_summary,
    write_sweep,
)
from pytest_multihost.extensions.sweep.result import SweepResult

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
    derived: JsonObject = json.loads(json.dumps(again.verdict.record()))
    is_expected = again.written.get("expected") is not None
    not_derived = _SET_BY_EXPECTATION if is_expected else frozenset({"expected"})
    differences = [
        name
        for name in sorted(derived.keys() - not_derived)  # analyses read more than facts.json
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


def rebuild(directory: Path) -> Iterator[Path | MultihostError]:  # noqa: C901 - one case each
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
    renderers = offered_renderers(new_plugin_manager())
    rebuilders = [each.rebuild for each in renderers if each.rebuild is not None]
    for each in attempts:
        try:
            yield _again(each, renderers)
        except OSError as error:
            yield MultihostError(f"{each}: its page cannot be written", seen=str(error))
        except MultihostError as error:
            yield error
    for run in runs:
        try:
            _, problems = RunFolder(run.parent, run.name).verdicts()
            yield from (unusable(run / "verdicts.jsonl", each) for each in problems)
            for rebuild in rebuilders:
                yield from rebuild(run)
            yield write_index(run, renderers)
        except FileNotFoundError:
            continue  # a run whose folder was thinned out
        except OSError as error:
            yield MultihostError(f"{run}: its page cannot be written", seen=str(error))


@dataclass(frozen=True, slots=True)
class _Places:
    """The part of a diagnosis that has source lines as they were at the time."""

    groups: tuple[PlaceGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class _WithPlaces:
    """The part of verdict.json that is read here."""

    diagnosis: _Places | None = None


def _again(directory: Path, renderers: Sequence[Renderer]) -> Path:
    """Write the pages of an attempt again, with the source lines of its verdict."""
    again = rejudge(directory)
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
    return write_page(directory, PageModel(judged=judged, verdict=verdict), renderers)


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
        write_index(run, offered_renderers(new_plugin_manager()))
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
    text = json.dumps(verdict.record(), indent=2)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        (into / "verdict.json").write_text(f"{text}\n", encoding="utf-8")
        write_page(into, PageModel(judged=judged, verdict=verdict))
    sys.stdout.write(f"{text if as_json else page_of(judged, str(into or directory))}\n")
    return int(judged.diagnosis is None or judged.diagnosis.kind == "unknown")


def _verdict(judged: Judgement, directory: Path) -> Verdict:
    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    return build_verdict(judged, Attempt(now, directory.name, None, {}))


# Results of shards of sweeps, merged to one result for each test.


@dataclass(frozen=True, slots=True)
class Merged:
    """The sweep of one test.

    Attributes:
        result: All shards together.
        missing: Shards of which there is no result.
    """

    result: SweepResult
    missing: tuple[int, ...]

    @property
    def is_bad(self) -> bool:
        """Whether there is a weakness that is not accepted, or something was not done."""
        return self.result.status in ("failed", "not swept") or bool(self.missing)


def merge_sweeps(directories: Sequence[Path]) -> list[Merged]:
    """Return the sweeps whose results are in some directories.

    Of two results of one shard, the one of the later run counts: a job may have been repeated.

    Args:
        directories: With sweep.json in them or anywhere below.

    Raises:
        MultihostError: There is none, or one cannot be used.
    """
    # `latest` links to a run that is there as well.
    paths = {path.resolve() for each in directories for path in each.rglob(SWEEP_NAME)}
    if not paths:
        raise MultihostError(
            f"there is no {SWEEP_NAME} in {', '.join(map(str, directories))}",
            seen="No test was swept, or the artifacts of the jobs were not downloaded.",
            remedy="With actions/upload-artifact, say include-hidden-files: true.",
        )
    results = sorted((read_sweep(path) for path in paths), key=lambda each: each.run_id)
    found = group_by_value((_identity(each), each) for each in results)
    return [_merged(each) for each in found.values()]


def _identity(result: SweepResult) -> tuple[object, ...]:
    """Return what shards of one sweep have in common."""
    versions = tuple(sorted((name, str(version)) for name, version in result.environment.items()))
    return result.nodeid, result.backend, result.world_size, result.seed, versions


def _merged(results: Iterable[SweepResult]) -> Merged:
    last = {each.shard: each for each in results}
    if None in last:  # the whole sweep
        return Merged(last[None], ())
    parts = [shard for shard in last if shard is not None]
    count = max(n for _, n in parts)
    missing = set(range(1, count + 1)) - {k for k, n in parts if n == count}
    return Merged(merge_results(list(last.values())), tuple(sorted(missing)))


def sweep_merge(directories: Sequence[Path], into: Path | None) -> int:
    """Print the merged sweeps; return 1 if one is bad, else 0.

    Args:
        directories: With sweep.json anywhere below.
        into: Where the merged results and their pages are written; None: nowhere.

    Raises:
        MultihostError: There is no result, or one cannot be used.
        OSError: Something cannot be written.
    """
    found = merge_sweeps(directories)
    for each in found:
        files = ""
        if into is not None:
            folder = into / attempt_name(each.result.nodeid, 1)
            folder.mkdir(parents=True, exist_ok=True)
            write_sweep(folder, each.result)
            files = str(write_sweep_page(folder, each.result))
        section = sweep_section(each.result, files=files)
        sys.stdout.write(f"--- {section.title}\n{section.text}\n")
        if each.missing:
            missing = rank_numbers(each.missing)
            sys.stdout.write(f"  missing   the results of shard {missing}: see those jobs\n")
    _tell_github([each.result for each in found])
    return int(any(each.is_bad for each in found))


def _tell_github(results: Sequence[SweepResult]) -> None:
    """Write annotations and a summary, where this is a step of GitHub Actions."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    here = str(Path.cwd())
    checkout = Checkout(root=here, workspace=os.environ.get("GITHUB_WORKSPACE") or here)
    for command in annotation_commands(sweep_annotations(results), checkout):
        sys.stdout.write(f"{command}\n")
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_page(Path(path), lambda most: sweep_summary(results, max_bytes=most))
