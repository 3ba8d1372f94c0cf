"""Apply rules to the record of a run, and word what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.hazards import rules
from pytest_multihost.hazards.rules import Found, Records
from pytest_multihost.model.fault import START, Fault, Point
from pytest_multihost.model.hazard import (
    Hazard,
    Hazards,
    HazardSide,
    HazardStep,
    Launch,
    PlaceOf,
)
from pytest_multihost.model.operation import group_by_value, group_name, rank_set
from pytest_multihost.model.spec import Rule
from pytest_multihost.model.sweep import Acceptance, Disturbance, RecordedPoint
from pytest_multihost.model.verdict import OperationName

_RULES: Mapping[Rule, Callable[[Records], Iterator[Found]]] = {
    "order": rules.order,
    "threads": rules.threads,
    "unwaited": rules.unwaited,
    "skipped": rules.skipped,
}

_WHEN: Mapping[Rule, str] = {
    "order": "NCCL before 2.26 can hang here at any time; since 2.26, with"
    " NCCL_LAUNCH_ORDER_IMPLICIT, it hangs if launch orders differ, as they do here.",
    "threads": "It hangs when the threads of another rank come in the other order: nothing orders"
    " the two calls, and the operations of the group do not match then.",
    "unwaited": "It hangs, or uses a buffer that is still in use, when the operation is not yet"
    " complete as its buffer is freed, its group is destroyed or its rank leaves.",
    "skipped": "With NCCL it hangs at the next synchronisation of the device: the operation ends on"
    " no rank before all have entered it.",
}


def find_hazards(
    records: Records,
    wanted: Sequence[Rule],
    *,
    size: int,
    place_of: PlaceOf,
) -> Hazards:
    """Return what rules find in the record of a run that has passed.

    Args:
        records: What each rank has launched, by rank.
        wanted: The rules to apply.
        size: Ranks of the world.
        place_of: Makes places of lines.
    """
    applied = tuple(rule for rule in wanted if rule in _RULES)
    found = [each for rule in applied for each in _RULES[rule](records)]
    alike = group_by_value((_lines(each), each) for each in found)
    hazards = tuple(_hazard(each, size, place_of) for each in alike.values())
    truncated = tuple(rank for rank, each in sorted(records.items()) if each.is_truncated)
    return Hazards(applied, hazards, truncated)


def _lines(found: Found) -> tuple[object, ...]:
    """Return what is equal for findings that are told as one: rule, operations and lines."""
    steps = (launch for _, launches in found.sides for launch in launches)
    return found.rule, *sorted(map(_line, steps))


def _line(step: Launch) -> tuple[str, str]:
    return step.operation.name, str(step.frame)


def _hazard(alike: Sequence[Found], size: int, place_of: PlaceOf) -> Hazard:
    first = alike[0]
    sides = tuple(_side(rank, launches, size, place_of) for rank, launches in first.sides)
    return Hazard(
        rule=first.rule,
        summary=_summary(alike, size),
        when=_WHEN[first.rule],
        sides=sides,
        count=len(alike),
    )


def _side(rank: int, steps: Sequence[Launch], size: int, place_of: PlaceOf) -> HazardSide:
    found = tuple(_step(each, size, place_of) for each in steps)
    return HazardSide(rank, found or (HazardStep("nothing of the kind", None, None),))


def _step(step: Launch, size: int, place_of: PlaceOf) -> HazardStep:
    operation = step.operation
    return HazardStep(
        operation.describe(size),
        OperationName(operation.name, operation.sequence, operation.group),
        place_of(step.frame) if step.frame is not None else None,
        step.nth,
    )


def _summary(alike: Sequence[Found], size: int) -> str:
    first = alike[0]
    ranks = rank_set(rank for each in alike for rank, _ in each.sides)
    group = group_name(first.group, size) if first.group else ""
    name, _ = _line(first.sides[0][1][0])
    match first.rule:
        case "order":
            return f"{ranks} launch operations of their groups in different orders"
        case "threads":
            return f"two threads of {ranks} are in operations of the {group} at a time"
        case "unwaited":
            return f"{ranks} never waited for {name}"
        case "skipped":
            (ahead, _), (behind, _) = first.sides
            return f"rank {behind} did not enter what rank {ahead} has launched in the {group}"


# Match hazards with those that a project accepts.


def accept_hazards(hazards: Hazards, accepted: Sequence[Acceptance], *, nodeid: str) -> Hazards:
    """Mark the hazards that are accepted.

    Args:
        hazards: All that a run of one test has shown.
        accepted: The entries of the project's file.
        nodeid: The test.
    """
    mine = [each for each in accepted if each.is_for(nodeid)]
    return replace(hazards, found=tuple(_marked(each, mine) for each in hazards.found))


def _marked(hazard: Hazard, accepted: Sequence[Acceptance]) -> Hazard:
    reasons = (each.reason for each in accepted if _accepts(each, hazard))
    return replace(hazard, accepted=next(reasons, None))


def _accepts(acceptance: Acceptance, hazard: Hazard) -> bool:
    """Return whether an entry names the hazard's rule, one of its lines and, if any, another."""
    places = hazard.places
    return acceptance.hazard == hazard.rule and any(
        acceptance.fits(one, other) for one in places for other in (*places, None)
    )


# What to do to a test so that a hazard of its becomes a hang on this machine.


def disturbances_of(hazards: Hazards, *, size: int, class_: int = 0) -> tuple[Disturbance, ...]:
    """Return the disturbances that try hazards: what hangs then is a finding with a token.

    Args:
        hazards: What a run has shown; what is accepted is not tried.
        size: Ranks of the world.
        class_: Number of the class that these disturbances are in.
    """
    found = {
        fault: Disturbance("hazards", fault, _ranks(fault), _passed(fault, hazard), class_)
        for hazard in hazards.open
        for fault in _faults(hazard, size)
    }
    return tuple(found.values())


def _faults(hazard: Hazard, size: int) -> Iterator[Fault]:
    """Yield faults that may make a hazard hang."""
    if hazard.rule == "order":
        yield Fault("stream_order", tuple(range(size)), START, {})
    if hazard.rule == "threads":  # the thread that came first comes last on this rank
        [side] = hazard.sides
        operation = side.steps[0].operation
        if operation is not None:
            at = Point("collective", operation.name, side.steps[0].nth)
            yield Fault("hold", (side.rank,), at, {"until": "others-wait"})


def _ranks(fault: Fault) -> tuple[int, ...]:
    return fault.ranks if isinstance(fault.ranks, tuple) else ()


def _passed(fault: Fault, hazard: Hazard) -> RecordedPoint:
    where = next(iter(hazard.places), None)
    return RecordedPoint(_ranks(fault)[0], fault.at, 0, where=where)
