"""Apply rules to the record of a run, and word what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_multihost.hazards import rules, transfers
from pytest_multihost.hazards.rules import Found, Records
from pytest_multihost.model.hazard import (
    Hazard,
    Hazards,
    HazardSide,
    HazardStep,
    Launch,
    PlaceOf,
)
from pytest_multihost.model.hazard_rules import Rule
from pytest_multihost.model.operation import group_by_value, group_name, rank_set
from pytest_multihost.model.verdict import OperationName

_RULES: Mapping[Rule, Callable[[Records], Iterator[Found]]] = {
    "order": rules.order,
    "threads": rules.threads,
    "unwaited": rules.unwaited,
    "skipped": rules.skipped,
    "racing": rules.racing,
    "buffered": transfers.buffered,
}

_WHEN: Mapping[Rule, str] = {
    "order": "NCCL before 2.26 can hang here at any time; since 2.26, with"
    " NCCL_LAUNCH_ORDER_IMPLICIT, it hangs if launch orders differ, as they do here.",
    "racing": "NCCL before 2.26 can hang here at any time; since 2.26, with"
    " NCCL_LAUNCH_ORDER_IMPLICIT, it hangs if launch orders differ, as they do here, unless one of"
    " the groups is on the CPU.",
    "threads": "It hangs when the threads of another rank come in the other order: nothing orders"
    " the two calls, and the operations of the group do not match then.",
    "unwaited": "It hangs, or uses a buffer that is still in use, when the operation is not yet"
    " complete as its buffer is freed, its group is destroyed or its rank leaves.",
    "skipped": "With NCCL it hangs at the next synchronisation of the device: the operation ends on"
    " no rank before all have entered it.",
    "buffered": "With NCCL it hangs when the messages do not fit its buffers: what two ranks send"
    " each other outside of a batch runs in the order of its launches.",
}


def find_hazards(
    records: Records, wanted: Sequence[Rule], *, size: int, place_of: PlaceOf
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
    return found.rule, *sorted((each.operation.name, str(each.frame)) for each in steps)


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


def _side(rank: int, launches: Sequence[Launch], size: int, place_of: PlaceOf) -> HazardSide:
    steps = tuple(
        HazardStep(
            each.operation.describe(size),
            OperationName(each.operation.name, each.operation.sequence, each.operation.group),
            place_of(each.frame) if each.frame is not None else None,
            each.nth,
        )
        for each in launches
    )
    return HazardSide(rank, steps or (HazardStep("nothing of the kind", None, None),))


def _summary(alike: Sequence[Found], size: int) -> str:
    first = alike[0]
    ranks = rank_set(rank for each in alike for rank, _ in each.sides)
    group = group_name(first.group, size) if first.group else ""
    name = first.sides[0][1][0].operation.name
    match first.rule:
        case "order" | "racing":
            return f"{ranks} launch operations of their groups in different orders"
        case "threads":
            return f"two threads of {ranks} are in operations of the {group} at a time"
        case "unwaited":
            return f"{ranks} never waited for {name}"
        case "skipped":
            (ahead, _), (behind, _) = first.sides
            return f"rank {behind} did not enter what rank {ahead} has launched in the {group}"
        case _:
            return f"{ranks} both send before they receive"
