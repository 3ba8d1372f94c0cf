"""Workflow commands for GitHub Actions: errors and notices at lines.

A command is ``::error file=F,line=N,title=T::MESSAGE``, one per line of output; a test's own text
must stay text in it. ``%``, CR and LF are written as ``%25``, ``%0D`` and ``%0A``. A property ends
at a comma and the list of them at a colon, so there these are ``%2C`` and ``%3A``. There is no
other escaping.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_multihost.core.model.printable import visible
from pytest_multihost.core.model.verdict import JsonVerdict, names_of, own_errors, run_word
from pytest_multihost.core.report.annotation import Annotation
from pytest_multihost.core.report.artifacts import last_attempts
from pytest_multihost.core.report.markdown import CONTROLS
from pytest_multihost.core.report.renderer import Renderer
from pytest_multihost.extensions.github.facts import (
    MAX_SIDES,
    claims_of,
    divergence_texts,
    has_failed,
    headline,
    sides_of,
)

MAX_ERRORS = 10
"""Maximum number of errors that GitHub shows of one step."""

_MAX_MESSAGE = 4000


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
        """Return a verdict's path relative to the repository, None if it is outside."""
        path = os.path.normpath(os.path.join(self.root, file))  # noqa: PTH118 - nothing is read
        inside = PurePosixPath(path).is_relative_to(self.workspace)
        return PurePosixPath(path).relative_to(self.workspace).as_posix() if inside else None


def error_commands(verdicts: Sequence[JsonVerdict], checkout: Checkout) -> list[str]:
    """Return GitHub's workflow commands that put an error at the line of each culprit.

    Where no culprit has a line, the error is at the line of one rank, and a notice at each other's.
    """
    failed = [each for each in last_attempts(verdicts) if has_failed(each)]
    return [command for each in failed[:MAX_ERRORS] for command in _commands(each, checkout)]


def _commands(verdict: JsonVerdict, checkout: Checkout) -> Iterator[str]:
    (file, line), names = _place(verdict, checkout), names_of(verdict)
    title = f"{run_word(verdict).upper()} {verdict['nodeid']}"
    yield workflow_command("error", file, line, title, _error_message(verdict))
    for side, ranks in list(sides_of(verdict["diagnosis"] or {}).items())[:MAX_SIDES]:
        known = checkout.relative(side[0])
        if known is not None and (known, side[1]) != (file, line):
            text = f"{names.of(ranks)} {'is' if len(ranks) == 1 else 'are'} here"
            yield workflow_command("notice", known, side[1], title, text)


def workflow_command(
    kind: str, file: str | None, line: int | None, title: str, message: str
) -> str:
    """Return one command: an ``error`` or ``notice`` at a line, which need not be known."""
    given = {"file": file, "line": str(line or ""), "title": title}
    data = {name: _command_data(value) for name, value in given.items() if value}
    properties = [
        f"{name}={text.replace(':', '%3A').replace(',', '%2C')}" for name, text in data.items()
    ]
    return f"::{kind} {','.join(properties)}::{_command_data(message)}"


def _error_message(verdict: JsonVerdict) -> str:
    lines, diagnosis, names = [headline(verdict)], verdict["diagnosis"], names_of(verdict)
    if diagnosis is not None:
        after = f"found {diagnosis['detected_after_s']:.1f} s after the last progress"
        lines.append(f"{diagnosis['kind']}, {diagnosis['confidence']}: {after}")
        if diagnosis["waiting"]:
            lines.append(f"waiting: {names.of(diagnosis['waiting'])}")
        lines += divergence_texts(diagnosis)
        if verdict["expected"] is False:  # the end may be as expected, and a rank failed besides
            lines += own_errors(verdict, diagnosis["culprits"])
        sides = list(sides_of(diagnosis).items())[:MAX_SIDES]
        lines += [f"{names.of(ranks)} at {file}:{line}" for (file, line), ranks in sides]
        lines += [claim for claim, _ in claims_of(diagnosis, names)]
    return "\n".join(lines)[:_MAX_MESSAGE]


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
    return visible(clean.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def annotation_commands(annotations: Sequence[Annotation], checkout: Checkout) -> list[str]:
    """Return GitHub's workflow commands for annotations, as many as GitHub shows."""
    return [_annotation(each, checkout) for each in annotations[:MAX_ERRORS]]


def _annotation(annotation: Annotation, checkout: Checkout) -> str:
    places = ((checkout.relative(each.file), each.line) for each in annotation.places)
    file, line = next((at for at in places if at[0] is not None), (None, None))
    return workflow_command(annotation.level, file, line, annotation.title, annotation.text)


def all_commands(
    run: Path, verdicts: Sequence[JsonVerdict], renderers: Sequence[Renderer], checkout: Checkout
) -> list[str]:
    """Return the workflow commands of a run."""
    of_extensions = [each.annotations for each in renderers if each.annotations is not None]
    groups = [annotation_commands(each(run, verdicts), checkout) for each in of_extensions]
    return [
        *error_commands(verdicts, checkout),
        *(command for group in groups for command in group),
    ]
