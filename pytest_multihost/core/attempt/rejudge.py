"""Judges a world a second time, from its artifacts alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_multihost.core.attempt.judge import judge
from pytest_multihost.core.backends import BUILT_IN_BACKENDS, symptoms_of
from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.json_values import JsonObject, from_json
from pytest_multihost.core.model.result import implausible
from pytest_multihost.core.model.source import SourceFiles
from pytest_multihost.core.model.stack import context_of
from pytest_multihost.core.model.verdict import Verdict
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.report.artifacts import Facts, build_verdict, read_artifact, unusable

BUILT_IN_SYMPTOMS = symptoms_of(BUILT_IN_BACKENDS)


@dataclass(frozen=True, slots=True)
class Rejudged:
    """A world judged a second time, from its artifacts.

    Attributes:
        written: The verdict written at the time of the run.
        unknown_symptoms: Patterns in the file that no backend of this installation has; they were
            not looked for.
    """

    judged: Judgement
    verdict: Verdict
    written: JsonObject
    unknown_symptoms: tuple[str, ...] = ()


def rejudge(
    directory: Path, sources: SourceFiles, symptoms: Symptoms = BUILT_IN_SYMPTOMS
) -> Rejudged:
    """Judge a world from its artifacts alone.

    Args:
        sources: The source files that may be read: the artifacts may be foreign.
        symptoms: All patterns of this installation's backends; those of the file are not trusted.

    Raises:
        MultihostError: A file is missing or unusable.
    """
    facts = read_artifact(directory / "facts.json", partial(from_json, Facts))
    written = read_artifact(directory / "verdict.json", partial(from_json, JsonObject))
    for problem in implausible(facts.result):
        raise unusable(directory / "facts.json", problem)
    looked_for, others = facts.symptoms.known_among(symptoms)
    judged = judge(facts.result, looked_for, context_of(facts.root, sources))
    return Rejudged(judged, build_verdict(judged, facts.attempt), written, others)
