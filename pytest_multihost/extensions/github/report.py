"""Output for GitHub Actions: an error at the culprit's line, and the verdicts as a page.

The annotations and Markdown of other extensions come from their renderers.

All data come from verdicts.jsonl, see docs/verdict.md, because under pytest-xdist several processes
write it and only the controller reports.

GitHub has two formats, and in both a test's own text must stay literal:

* Workflow commands, ``::error file=F,line=N,title=T::MESSAGE``, one per line of output. ``%``, CR
  and LF are written as ``%25``, ``%0D`` and ``%0A``. A comma ends a property and a colon ends the
  list of properties, so within properties these are ``%2C`` and ``%3A``. There is no other
  escaping.
* The summary of a step: GitHub Flavored Markdown, in which HTML is allowed. Punctuation is written
  as character references; see `escaped`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from pytest_multihost.core.model.operation import group_by_value, rank_set
from pytest_multihost.core.model.verdict import JsonVerdict
from pytest_multihost.core.report.annotation import Annotation
from pytest_multihost.core.report.artifacts import last_attempts
from pytest_multihost.core.report.markdown import CONTROLS, escaped, fitted
from pytest_multihost.core.report.renderer import Renderer

MAX_SUMMARY = 1024 * 1024
"""Maximum bytes of one step's summary; GitHub drops a larger file entirely."""

MAX_ERRORS = 10
"""Maximum number of errors that GitHub shows for one step."""

_MAX_MESSAGE = 4000
_MAX_CLAIMS = 8
_MAX_SIDES = 4


@dataclass(frozen=True, slots=True)
class Checkout:
    """The directories of the code.

    Attributes:
        root: pytest's rootdir; paths in verdicts are relative to it.
        workspace: The root of the repository; paths in commands are relative to it.
    """

    root: str
    workspace: str

    def relative(self, file: str) -> str | None:
        """Return a verdict's path relative to the repository; None if it is outside."""
        path = os.path.normpath(os.path.join(self.root, file))  # noqa: PTH118 - nothing is read
        inside = PurePosixPath(path).is_relative_to(self.workspace)
        return PurePosixPath(path).relative_to(self.workspace).as_posix() if inside else None


def has_failed(verdict: JsonVerdict) -> bool:
    """Return whether pytest counts the test as failed."""
    return verdict["status"] in ("failed", "error")


def headline(verdict: JsonVerdict) -> str:
    """Return what happened, in one line."""
    if verdict["diagnosis"] is not None:
        return str(verdict["diagnosis"]["summary"])
    return next(_raised(verdict), str(verdict["reason"] or verdict["outcome"]))


def _raised(verdict: JsonVerdict, culprits: Sequence[int] = ()) -> Iterator[str]:
    """Yield the own exceptions of ranks other than the culprits."""
    for each in verdict["rank_results"]:
        is_own = each["outcome"] != "collateral" and each["rank"] not in culprits
        if each["error"] is not None and is_own:
            first = (str(each["error"]["message"]).splitlines() or [""])[0]
            who = f"rank {each['rank']}: {each['error']['type']}"
            yield f"{who}: {first}" if first else who


# Errors at a line


def error_commands(verdicts: Sequence[JsonVerdict], checkout: Checkout) -> list[str]:
    """Return the workflow commands that put an error at the line of each failed test's culprit.

    If no culprit has a line, the error is at the line of one rank, and a notice at each other's.
    """
    failed = [each for each in last_attempts(verdicts) if has_failed(each)]
    return [command for each in failed[:MAX_ERRORS] for command in _commands(each, checkout)]


def _commands(verdict: JsonVerdict, checkout: Checkout) -> Iterator[str]:
    file, line = _place(verdict, checkout)
    title = f"{verdict['outcome'].upper()} {verdict['nodeid']}"
    yield workflow_command("error", file, line, title, _error_message(verdict))
    for side, ranks in list(_sides(verdict["diagnosis"] or {}).items())[:_MAX_SIDES]:
        known = checkout.relative(side[0])
        if known is not None and (known, side[1]) != (file, line):
            text = f"{rank_set(ranks)} {'is' if len(ranks) == 1 else 'are'} here"
            yield workflow_command("notice", known, side[1], title, text)


def workflow_command(
    kind: str, file: str | None, line: int | None, title: str, message: str
) -> str:
    """Return one command: an ``error`` or ``notice``, at a line if that is known."""
    given = {"file": file, "line": str(line or ""), "title": title}
    data = {name: _command_data(value) for name, value in given.items() if value}
    properties = [
        f"{name}={text.replace(':', '%3A').replace(',', '%2C')}" for name, text in data.items()
    ]
    return f"::{kind} {','.join(properties)}::{_command_data(message)}"


def _sides(diagnosis: JsonVerdict) -> dict[tuple[str, int], list[int]]:
    """Return the ranks by line; empty if a culprit has a line."""
    places = () if diagnosis.get("where") else diagnosis.get("places", ())
    return group_by_value(((each["file"], each["line"]), each["rank"]) for each in places)


def _error_message(verdict: JsonVerdict) -> str:
    lines, diagnosis = [headline(verdict)], verdict["diagnosis"]
    if diagnosis is not None:
        after = f"judged {diagnosis['detected_after_s']:.1f} s after the last progress"
        lines.append(f"{diagnosis['kind']}, {diagnosis['confidence']}: {after}")
        if diagnosis["waiting"]:
            lines.append(f"waiting: {rank_set(diagnosis['waiting'])}")
        lines += _divergence(diagnosis)
        if verdict["expected"] is False:  # the hang may be as expected, and another rank has failed
            lines += _raised(verdict, diagnosis["culprits"])
        sides = list(_sides(diagnosis).items())[:_MAX_SIDES]
        lines += [f"{rank_set(ranks)} at {file}:{line}" for (file, line), ranks in sides]
        lines += [claim for claim, _ in _claims(diagnosis)]
    return "\n".join(lines)[:_MAX_MESSAGE]


def _divergence(diagnosis: JsonVerdict) -> list[str]:
    """Return where the ranks diverged, if they did; older verdicts lack it."""
    divergence = diagnosis.get("divergence")
    return [f"diverged {divergence['summary']}"] if divergence else []


def _place(verdict: JsonVerdict, checkout: Checkout) -> tuple[str | None, int | None]:
    """Return the line of the culprit, else of another rank, or an error; else the test's file."""
    diagnosis = verdict["diagnosis"] or {"culprits": [], "where": None}
    culprits = diagnosis["culprits"]
    raised = [each for each in verdict["rank_results"] if each["error"] is not None]
    raised.sort(key=lambda each: (each["rank"] not in culprits, each["outcome"] == "collateral"))
    errors, places = (each["error"] for each in raised), diagnosis.get("places", ())
    for at in filter(None, (diagnosis["where"], *places, *errors)):
        if at["file"] and (known := checkout.relative(at["file"])) is not None:
            return known, at["line"]
    return checkout.relative(verdict["nodeid"].partition("::")[0]), None


def _command_data(text: str) -> str:
    clean = CONTROLS.sub(lambda found: "\r" if found[0] == "\r" else "", text)
    return clean.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


# The summary


def summary(verdicts: Sequence[JsonVerdict], *, max_bytes: int = MAX_SUMMARY) -> str:
    """Return the run's verdicts as Markdown; an empty text if no world ran.

    Args:
        verdicts: The verdicts of all attempts.
        max_bytes: Maximum size; parts that do not fit are skipped, with a note.
    """
    last = last_attempts(verdicts)
    if not last:
        return ""
    bad = [each for each in last if has_failed(each) or each["status"] == "xfailed"]
    outcomes = Counter(each["outcome"] if has_failed(each) else each["status"] for each in last)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    tests = "test" if len(last) == 1 else "tests"
    heading = f"### Multi-host tests\n\n{len(last)} {tests} ran as worlds of ranks: {counts}\n\n"
    parts = [heading, *([_TABLE_HEAD] if bad else []), *map(_row, bad), *map(_details, bad)]
    return fitted(parts, _LEFT_OUT, max_bytes)


_TABLE_HEAD = (
    "| test | ranks | result | kind | culprits | waiting | where | judged after |\n"
    "|---|--:|---|---|---|---|---|--:|\n"
)
_LEFT_OUT = "\n_There is more in the artifacts\\: it does not fit into a summary._\n"


def _row(verdict: JsonVerdict) -> str:
    found = verdict["diagnosis"] or {}
    where = found.get("where")
    sides = [f"{file}:{line} ({rank_set(ranks)})" for (file, line), ranks in _sides(found).items()]
    result = verdict["outcome"].upper() if has_failed(verdict) else verdict["status"]
    attempt = f" (attempt {verdict['attempt']})" if verdict["attempt"] > 1 else ""
    cells = [
        verdict["nodeid"],
        f"{verdict['world_size']} {verdict['backend']}",
        f"{result}{attempt}",
        f"{found['kind']}, {found['confidence']}" if found else "",
        rank_set(found["culprits"]) if found.get("culprits") else "",
        rank_set(found["waiting"]) if found.get("waiting") else "",
        f"{where['file']}:{where['line']} {where['function']}" if where else "; ".join(sides),
        f"{found['detected_after_s']:.1f} s" if found else "",
    ]
    return f"| {' | '.join(escaped(cell) for cell in cells)} |\n"


def _details(verdict: JsonVerdict) -> str:
    title = f"{verdict['nodeid']}: {headline(verdict)}"
    lines = [f"\n<details><summary>{escaped(title)}</summary>\n"]
    diagnosis = verdict["diagnosis"]
    if diagnosis is not None:
        claims = [f"{claim} ({source})" for claim, source in _claims(diagnosis)]
        lines += [
            f"* {escaped(each)}"
            for each in [*_divergence(diagnosis), *claims, *diagnosis["notes"][:_MAX_CLAIMS]]
        ]
    alike = group_by_value(
        ((each["outcome"], each["phase"], each["label"]), each["rank"])
        for each in verdict["rank_results"]
    )
    for (outcome, phase, label), ranks in alike.items():
        state = f"{outcome} in {phase}{f', {label}' if label else ''}"
        lines.append(f"* {escaped(f'{rank_set(ranks)}: {state}')}")
    if (clock := verdict["clock_jumps"]) is not None:
        real_s = f"{clock['real_s']:.1f} s"
        jumped = f"jumped {clock['jumped_s']:.1f} s; the world took {real_s}"
        lines.append(f"* clock: {escaped(jumped)}")
    lines.append(f"* artifacts: {escaped(verdict['run_id'] + '/' + verdict['dir'])}")
    if verdict["replay"]:
        lines.append(f"* replay: {escaped('--multihost-replay ' + verdict['replay'], 2000)}")
    return "\n".join([*lines, "\n</details>\n"])


def _claims(diagnosis: JsonVerdict) -> list[tuple[str, str]]:
    """Return each distinct piece of evidence with its ranks, and its source."""
    alike = group_by_value(
        ((each["fact"], each["source"]), each["rank"]) for each in diagnosis["evidence"]
    )
    claims = [(f"{rank_set(ranks)}: {fact}", source) for (fact, source), ranks in alike.items()]
    return claims[:_MAX_CLAIMS]


# Annotations of other extensions


def annotation_commands(annotations: Sequence[Annotation], checkout: Checkout) -> list[str]:
    """Return the workflow commands for annotations, as many as GitHub shows."""
    return [_annotation(each, checkout) for each in annotations[:MAX_ERRORS]]


def _annotation(annotation: Annotation, checkout: Checkout) -> str:
    places = ((checkout.relative(each.file), each.line) for each in annotation.places)
    file, line = next((at for at in places if at[0] is not None), (None, None))
    return workflow_command(annotation.level, file, line, annotation.title, annotation.text)


def all_commands(
    run: Path, verdicts: Sequence[JsonVerdict], renderers: Sequence[Renderer], checkout: Checkout
) -> list[str]:
    """Return the workflow commands of a run, including those for extensions' annotations.

    Args:
        verdicts: The verdicts of all attempts.
    """
    of_extensions = [each.annotations for each in renderers if each.annotations is not None]
    groups = [annotation_commands(each(run, verdicts), checkout) for each in of_extensions]
    return [
        *error_commands(verdicts, checkout),
        *(command for group in groups for command in group),
    ]


def append_summaries(
    path: Path, run: Path, verdicts: Sequence[JsonVerdict], renderers: Sequence[Renderer]
) -> None:
    """Append the run to a step's summary, which may already have other programs' text.

    Args:
        path: The file of the summary.
        run: The folder of the run.
        verdicts: The verdicts of all attempts.

    Raises:
        OSError: The file cannot be written.
    """
    of_extensions = [each.markdown for each in renderers if each.markdown is not None]
    append_page(path, lambda max_bytes: summary(verdicts, max_bytes=max_bytes))
    for each in of_extensions:
        append_page(path, partial(each, run, verdicts))


def append_page(path: Path, page: Callable[[int], str]) -> None:
    """Append a page to a step's summary.

    Args:
        page: Takes the maximum size in bytes and returns the page.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("ab") as file:
        file.write(page(MAX_SUMMARY - file.tell()).encode())
