"""`facts.json`: everything that a verdict is derived from, written and read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.blame import Judgement, judge_world
from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.json_values import (
    Json,
    JsonError,
    JsonObject,
    from_json,
    parse_json,
    to_json,
)
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.stack import SourceContext, SourceOf
from pytest_multihost.model.verdict import Verdict
from pytest_multihost.outcome import Symptoms
from pytest_multihost.report.artifacts.verdict_record import Attempt, build_verdict


@dataclass(frozen=True, slots=True)
class _Facts:
    """What facts.json holds.

    Attributes:
        result: What was observed.
        symptoms: How failures look that follow from another rank's.
        attempt: Where the verdict belongs.
        root: pytest's rootdir.
    """

    result: WorldResult
    symptoms: Symptoms
    attempt: Attempt
    root: str


def write_facts(
    directory: Path, result: WorldResult, symptoms: Symptoms, attempt: Attempt, *, root: str
) -> None:
    """Write what the verdict was derived from, so that it can be derived again."""
    # What a test has put into pytest's report may be no JSON.
    text = json.dumps(to_json(_Facts(result, symptoms, attempt, root)), default=repr)
    (directory / "facts.json").write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Rejudged:
    """A world judged a second time, from its artifacts.

    Attributes:
        judged: Result, finding and diagnosis.
        verdict: The verdict that follows.
        context: Root directory and source lines.
        written: The verdict that was written at the time.
    """

    judged: Judgement
    verdict: Verdict
    context: SourceContext
    written: JsonObject


def rejudge(directory: Path, source_of: SourceOf) -> Rejudged:
    """Judge a world from its artifacts alone.

    Args:
        directory: The attempt's folder.
        source_of: Reads a line of a file.

    Raises:
        MultihostError: The folder does not hold what is needed.
    """
    data, written = _read(directory / "facts.json"), _read(directory / "verdict.json")
    try:
        facts = from_json(_Facts, data)
    except JsonError as error:
        raise MultihostError(
            f"{directory}: its facts cannot be read",
            seen=str(error),
            remedy="They were written by another version: use that one.",
        ) from error
    context = SourceContext(facts.root, source_of)
    judged = judge_world(facts.result, facts.symptoms, context)
    verdict = build_verdict(judged.result, judged.finding, judged.diagnosis, facts.attempt)
    return Rejudged(judged, verdict, context, from_json(JsonObject, written))


def _read(path: Path) -> Json:
    try:
        return parse_json(path.read_bytes())
    except (OSError, JsonError) as error:
        raise MultihostError(
            f"{path.parent} is not the folder of an attempt that can be explained",
            seen=f"{path.name}: {error}",
            remedy="Name a folder such as .pytest_multihost/latest/NAME of a test that failed.",
        ) from error
