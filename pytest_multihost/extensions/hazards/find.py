"""Applies rules to the record of a run, and describes their findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.verdict import OperationName
from pytest_multihost.extensions.hazards.model import (
    Hazard,
    Hazards,
    HazardSide,
    HazardStep,
    Launch,
    PlaceOf,
)
from pytest_multihost.extensions.hazards.records import Records
from pytest_multihost.extensions.hazards.rule import Found, HazardRule, Occurrences


def find_hazards(
    records: Records, rules: Sequence[HazardRule], *, names: Names, place_of: PlaceOf
) -> Hazards:
    """Return the hazards that rules find in the record of a run that passed."""
    return Hazards(
        rules=tuple(rule.name for rule in rules),
        found=tuple(each for rule in rules for each in _found(rule, records, names, place_of)),
        truncated=tuple(rank for rank, each in sorted(records.items()) if each.is_truncated),
    )


def _found(rule: HazardRule, records: Records, names: Names, place_of: PlaceOf) -> Iterator[Hazard]:
    """Yield the hazards that one rule finds, one hazard for all findings at the same lines."""
    for alike in group_by_value((_lines(each), each) for each in rule.find(records)).values():
        seen = Occurrences(tuple(alike), names)
        yield Hazard(
            rule=rule.name,
            summary=rule.summarize(seen),
            when=rule.when,
            sides=tuple(_side(*side, names, place_of) for side in seen.first.sides),
            count=len(alike),
        )


def _lines(found: Found) -> tuple[tuple[str, str], ...]:
    """Return the operations and lines of a finding; findings with equal ones are one hazard."""
    steps = (launch for _, launches in found.sides for launch in launches)
    return tuple(sorted((each.operation.name, str(each.frame)) for each in steps))


def _side(rank: int, steps: Sequence[Launch], names: Names, place_of: PlaceOf) -> HazardSide:
    found = tuple(_step(each, names, place_of) for each in steps)
    return HazardSide(rank, found or (HazardStep("nothing of the kind", None, None),))


def _step(step: Launch, names: Names, place_of: PlaceOf) -> HazardStep:
    operation = step.operation
    return HazardStep(
        operation.describe(names),
        OperationName(operation.name, operation.sequence, operation.group),
        place_of(step.frame) if step.frame is not None else None,
        step.nth,
    )
