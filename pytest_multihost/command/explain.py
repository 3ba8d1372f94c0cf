"""Derive a verdict again from an attempt's artifacts alone: ``multihost explain DIR``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.model.json_values import Json, JsonObject, to_json
from pytest_multihost.model.stack import SourceOf
from pytest_multihost.report.artifacts import rejudge
from pytest_multihost.report.text import page_sections

_SET_BY_CONTROLLER = frozenset({"status", "expected"})
"""Fields that multihost_expect and must_fire change: the controller does that, not the judge."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The page of an attempt.

    Attributes:
        page: For the terminal.
        differences: Fields in which the verdict does not come out as it was written.
    """

    page: str
    differences: tuple[str, ...]


def explain(directory: Path, source_of: SourceOf) -> Explanation:
    """Return the page of an attempt, and whether its verdict comes out as it was written.

    Args:
        directory: The attempt's folder.
        source_of: Reads a line of a file.

    Raises:
        MultihostError: The folder does not hold what is needed.
    """
    again = rejudge(directory, source_of)
    result, finding, diagnosis = again.judged.result, again.judged.finding, again.judged.diagnosis
    lines = [f"{finding.outcome.upper()}  {finding.reason}"]
    for part in page_sections(
        result, finding, diagnosis, context=again.context, files=str(directory)
    ):
        lines += [f"--- {part.title}", part.text]
    return Explanation(
        "\n".join(lines),
        _differences(json.loads(json.dumps(to_json(again.verdict))), again.written),
    )


def _differences(derived: JsonObject, written: JsonObject) -> tuple[str, ...]:
    names = sorted((derived.keys() | written.keys()) - _SET_BY_CONTROLLER)
    return tuple(
        name
        for name in names
        if _without_sources(derived.get(name)) != _without_sources(written.get(name))
    )


def _without_sources(value: Json) -> Json:
    """Leave out the texts of source lines, which may have changed since."""
    if isinstance(value, Mapping):
        return {key: _without_sources(each) for key, each in value.items() if key != "source"}
    if isinstance(value, list):
        return [_without_sources(each) for each in value]
    return value
