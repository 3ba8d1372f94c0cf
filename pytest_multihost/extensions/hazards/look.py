"""Looks for hazards in an attempt that passed, and turns them into the analysis of a test."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.core.model.errors import MultihostHazardWarning
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.pytest_plugin.analysis import Analysis, PlacedWarning
from pytest_multihost.core.report.layout import Section
from pytest_multihost.core.slots import slots_path
from pytest_multihost.extensions.hazards.accept import accept_hazards
from pytest_multihost.extensions.hazards.find import find_hazards
from pytest_multihost.extensions.hazards.model import Hazards
from pytest_multihost.extensions.hazards.options import HazardMode
from pytest_multihost.extensions.hazards.read_record import of_test, plain_calls, read_record
from pytest_multihost.extensions.hazards.report import hazard_headline, hazards_section
from pytest_multihost.extensions.hazards.rule import HazardRule


def look_for_hazards(
    judged: Judgement, scratch: Path, rules: Sequence[HazardRule], accepted: Sequence[Acceptance]
) -> Hazards | None:
    """Return the hazards of a world; None if the world did not pass, or had faults.

    Args:
        scratch: The world's directory, with the slot pages of its ranks.
        accepted: The entries of the project's file.
    """
    spec = judged.result.spec
    if judged.finding.status != "passed" or judged.diagnosis is not None or spec.faults:
        return None
    go_s = judged.result.go_s or 0.0
    pages = [slots_path(scratch, rank) for rank in range(spec.size)]
    if not any(rule.judges_plain_runs for rule in rules):
        calls = {plain_calls(page, since_s=go_s) for page in pages}
        if len(calls) == 1 and None not in calls:  # all ranks launched the same, in the same order
            return Hazards(tuple(rule.name for rule in rules))
    records = {rank: of_test(read_record(page, rank=rank), go_s) for rank, page in enumerate(pages)}
    found = find_hazards(records, rules, names=spec.names, place_of=judged.context.place)
    return accept_hazards(found, accepted, nodeid=spec.nodeid)


def analysis_of(hazards: Hazards | None, mode: HazardMode) -> Analysis:
    """Return the analysis of an attempt.

    Args:
        hazards: The hazards of the attempt; None if none were looked for.
    """
    if hazards is None or not hazards.open:
        return Analysis(name="hazards", record=to_json(hazards) if hazards is not None else None)
    warnings = tuple(
        PlacedWarning(MultihostHazardWarning, each.text, next(iter(each.places), None))
        for each in hazards.open
    )
    return Analysis(
        name="hazards",
        record=to_json(hazards),
        headline=f"HAZARD  {hazard_headline(hazards)}",
        fails_test=mode == "fail",
        sections=partial(_sections, hazards),
        warnings=warnings if mode == "warn" else (),
        has_findings=True,
    )


def _sections(hazards: Hazards, files: str, _columns: int | None) -> Sequence[Section]:
    return [hazards_section(hazards, files=files)]
