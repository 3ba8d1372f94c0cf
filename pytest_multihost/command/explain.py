"""Derive a verdict again from an attempt's artifacts alone: ``multihost explain DIR``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_multihost.model.json_values import to_json
from pytest_multihost.model.stack import SourceOf
from pytest_multihost.report.artifacts import rejudge
from pytest_multihost.report.text import page_sections


def explain(directory: Path, source_of: SourceOf) -> Iterator[str]:
    """Yield the page of an attempt, and whether the verdict comes out as it was written.

    Args:
        directory: The attempt's folder.
        source_of: Reads a line of a file.

    Raises:
        MultihostError: The folder does not hold what is needed.
    """
    again = rejudge(directory, source_of)
    judged, context = again.judged, again.context
    yield f"{judged.finding.outcome.upper()}  {judged.finding.reason}"
    for part in page_sections(
        judged.result, judged.finding, judged.diagnosis, context=context, files=str(directory)
    ):
        yield from (f"--- {part.title}", part.text)
    yield from _agreement(json.loads(json.dumps(to_json(again.verdict))), again.written)


def differences(derived: Mapping[str, Any], written: Mapping[str, Any]) -> list[str]:
    """Return the keys in which two verdicts differ; the source text of lines may have changed."""
    one, two = _without_sources(derived), _without_sources(written)
    # multihost_expect and must_fire change the status: the controller's business, not the judge's.
    keys = sorted((one.keys() | two.keys()) - {"status", "expected"})
    return [key for key in keys if one.get(key) != two.get(key)]


def _without_sources(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, Mapping):
        return {key: _without_sources(each) for key, each in value.items() if key != "source"}
    if isinstance(value, list):
        return [_without_sources(each) for each in value]
    return value


def _agreement(derived: Mapping[str, Any], written: Mapping[str, Any]) -> Iterator[str]:
    found = differences(derived, written)
    yield (
        f"differs from verdict.json in: {', '.join(found)}" if found else "agrees with verdict.json"
    )
