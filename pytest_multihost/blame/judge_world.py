"""Judge a world: what happened to it, and who made the others wait."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.blame.build_diagnosis import diagnose, informed
from pytest_multihost.blame.masked_timeouts import judge_with_excuses
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.model.verdict import Diagnosis
from pytest_multihost.outcome import Finding, Symptoms


@dataclass(frozen=True, slots=True)
class Judgement:
    """A world, what was found, and why."""

    result: WorldResult
    finding: Finding
    diagnosis: Diagnosis | None


def judge_world(result: WorldResult, symptoms: Symptoms, context: SourceContext) -> Judgement:
    """Judge a world: what happened, and who made the others wait."""
    finding = judge_with_excuses(result, symptoms)
    diagnosis = diagnose(result, finding, context)
    return Judgement(result, informed(finding, diagnosis), diagnosis)
