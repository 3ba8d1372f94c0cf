"""Derive a verdict again from an attempt's artifacts alone: ``multihost explain DIR``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_multihost.analysis.excuses import judge_with_excuses
from pytest_multihost.analysis.outcome import Finding
from pytest_multihost.analysis.record import Attempt, verdict
from pytest_multihost.analysis.symptoms import Symptoms
from pytest_multihost.analysis.telling import SourceOf, Telling, diagnose, informed
from pytest_multihost.analysis.text import sections
from pytest_multihost.model.diagnosis import Diagnosis
from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.result import WorldResult


@dataclass(frozen=True, slots=True)
class Judged:
    """A world, what was found, and why."""

    result: WorldResult
    finding: Finding
    diagnosis: Diagnosis | None


def judge_world(result: WorldResult, symptoms: Symptoms, telling: Telling) -> Judged:
    """Judge a world: what happened, and who made the others wait."""
    finding = judge_with_excuses(result, symptoms)
    diagnosis = diagnose(result, finding, telling)
    return Judged(result, informed(finding, diagnosis), diagnosis)


def facts_of(
    result: WorldResult, symptoms: Symptoms, attempt: Attempt, *, root: str
) -> dict[str, Any]:
    """Return everything that a verdict is derived from, as a JSON object."""
    return {
        "result": result.to_json(),
        "symptoms": asdict(symptoms),
        "attempt": asdict(attempt),
        "root": root,
    }


@dataclass(frozen=True, slots=True)
class Again:
    """A world judged a second time, from its artifacts.

    Attributes:
        judged: What comes out.
        attempt: Where it belongs.
        telling: Root directory and source lines.
        written: The verdict that was written at the time.
    """

    judged: Judged
    attempt: Attempt
    telling: Telling
    written: Mapping[str, Any]


def judge_again(directory: Path, source_of: SourceOf) -> Again:
    """Judge a world from its artifacts alone.

    Args:
        directory: The attempt's folder.
        source_of: Reads a line of a file.

    Raises:
        MultihostError: The folder does not hold what is needed.
    """
    facts = _read(directory / "facts.json")
    written = _read(directory / "verdict.json")
    telling = Telling(facts["root"], source_of)
    symptoms = Symptoms(**{name: tuple(each) for name, each in facts["symptoms"].items()})
    judged = judge_world(WorldResult.from_json(facts["result"]), symptoms, telling)
    return Again(judged, Attempt(**facts["attempt"]), telling, written)


def explain(directory: Path, source_of: SourceOf) -> Iterator[str]:
    """Yield the page of an attempt, and whether the verdict comes out as it was written.

    Args:
        directory: The attempt's folder.
        source_of: Reads a line of a file.

    Raises:
        MultihostError: The folder does not hold what is needed.
    """
    again = judge_again(directory, source_of)
    judged, telling = again.judged, again.telling
    yield f"{judged.finding.outcome.upper()}  {judged.finding.reason}"
    for part in sections(
        judged.result, judged.finding, judged.diagnosis, telling=telling, files=str(directory)
    ):
        yield from (f"--- {part.title}", part.text)
    data = verdict(judged.result, judged.finding, judged.diagnosis, again.attempt)
    yield from _agreement(json.loads(json.dumps(data.to_json())), again.written)


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


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MultihostError(
            f"{path.parent} is not the folder of an attempt that can be explained",
            seen=f"{path.name}: {error}",
            remedy="Name a folder such as .pytest_multihost/latest/NAME of a test that failed.",
        ) from error
    return data
