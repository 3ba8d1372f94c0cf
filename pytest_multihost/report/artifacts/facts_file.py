"""`facts.json`: everything that a verdict is derived from, written and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_multihost.blame import Judgement, judge_world
from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.json_values import from_json, to_json
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.stack import SourceContext, SourceOf
from pytest_multihost.outcome import Symptoms
from pytest_multihost.report.artifacts.verdict_record import Attempt


def write_facts(
    directory: Path, result: WorldResult, symptoms: Symptoms, attempt: Attempt, *, root: str
) -> None:
    """Write what the verdict was derived from, so that it can be derived again.

    Args:
        directory: The attempt's folder.
        result: What was observed.
        symptoms: What the backend calls the consequences of another rank's failure.
        attempt: Where the verdict belongs.
        root: pytest's rootdir.
    """
    facts = {
        "result": to_json(result),
        "symptoms": asdict(symptoms),
        "attempt": asdict(attempt),
        "root": root,
    }
    text = json.dumps(facts, default=repr)
    (directory / "facts.json").write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Rejudged:
    """A world judged a second time, from its artifacts.

    Attributes:
        judged: The new verdict's grounds: result, finding and diagnosis.
        attempt: Where it belongs.
        context: Root directory and source lines.
        written: The verdict that was written at the time.
    """

    judged: Judgement
    attempt: Attempt
    context: SourceContext
    written: Mapping[str, Any]


def rejudge(directory: Path, source_of: SourceOf) -> Rejudged:
    """Judge a world from its artifacts alone.

    Args:
        directory: The attempt's folder.
        source_of: Reads a line of a file.

    Raises:
        MultihostError: The folder does not hold what is needed.
    """
    facts = _read(directory / "facts.json")
    written = _read(directory / "verdict.json")
    context = SourceContext(facts["root"], source_of)
    symptoms = Symptoms(**{name: tuple(each) for name, each in facts["symptoms"].items()})
    judged = judge_world(from_json(WorldResult, facts["result"]), symptoms, context)
    return Rejudged(judged, Attempt(**facts["attempt"]), context, written)


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
