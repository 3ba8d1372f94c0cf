"""Apply rules to the record of a run, and word what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.core.model.fault import START, Fault, Point
from pytest_multihost.core.model.operation import group_by_value, group_name, rank_set
from pytest_multihost.core.model.verdict import OperationName, Place
from pytest_multihost.extensions.hazards import rules
from pytest_multihost.extensions.hazards.model import (
    Hazard,
    Hazards,
    HazardSide,
    HazardStep,
    Launch,
    Passed,
    PlaceOf,
)
from pytest_multihost.extensions.hazards.names import Rule
from pytest_multihost.extensions.hazards.rules import Found, Records, programs
from pytest_multihost.extensions.hazards.unguarded import TextOf, unguarded

_RULES: Mapping[Rule, Callable[[Records], Iterator[Found]]] = {
    "order": rules.order,
    "threads": rules.threads,
    "unwaited": rules.unwaited,
    "skipped": rules.skipped,
    "racing": rules.racing,
    "programs": programs,
    "buffered": rules.buffered,
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
    "programs": "On GPUs a process can stay in the first start of a program until the others have"
    " started it, too: it hangs when they wait in another one, or in a barrier.",
    "unguarded": "When the call fails there, its rank never enters the operation: the others wait"
    " until a launcher, a timeout or somebody ends them.",
    "buffered": "With NCCL it hangs when the messages do not fit its buffers: what two ranks send"
    " each other outside of a batch runs in the order of its launches.",
}


def find_hazards(
    records: Records,
    wanted: Sequence[Rule],
    *,
    size: int,
    place_of: PlaceOf,
    text_of: TextOf = lambda _: "",
) -> Hazards:
    """Return what rules find in the record of a run that has passed.

    Args:
        records: What each rank has launched, by rank.
        size: Ranks of the world.
        text_of: Reads the program's files.
    """
    known: dict[Rule, Callable[[Records], Iterator[Found]]] = {
        **_RULES,
        "unguarded": partial(unguarded, text_of=text_of),
    }
    applied = tuple(rule for rule in wanted if rule in known)
    found = [each for rule in applied for each in known[rule](records)]
    alike = group_by_value((_lines(each), each) for each in found)
    hazards = tuple(_hazard(each, size, place_of) for each in alike.values())
    truncated = tuple(rank for rank, each in sorted(records.items()) if each.is_truncated)
    return Hazards(applied, hazards, truncated)


def _lines(found: Found) -> tuple[object, ...]:
    """Return what is equal for findings that are told as one: rule, operations and lines."""
    steps = (launch for _, launches in found.sides for launch in launches)
    return found.rule, *sorted(map(_line, steps))


def _line(step: Launch | Passed) -> tuple[str, str]:
    if isinstance(step, Passed):
        return step.point.point.call or step.point.point.name, str(step.point.where)
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


def _side(rank: int, steps: Sequence[Launch | Passed], size: int, place_of: PlaceOf) -> HazardSide:
    found = tuple(_step(each, size, place_of) for each in steps)
    return HazardSide(rank, found or (HazardStep("nothing of the kind", None, None),))


def _step(step: Launch | Passed, size: int, place_of: PlaceOf) -> HazardStep:
    if isinstance(step, Passed):
        point = step.point.point
        text = f"{point.call} of {point.name}" if point.call else point.name
        where = place_of(step.frames[0]) if step.frames else None
        return HazardStep(text, None, where, point.nth, point)
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
        case "order" | "racing":
            return f"{ranks} launch operations of their groups in different orders"
        case "programs":
            return f"{ranks} start programs, or meet at barriers, in different orders"
        case "threads":
            return f"two threads of {ranks} are in operations of the {group} at a time"
        case "unwaited":
            return f"{ranks} never waited for {name}"
        case "unguarded":
            alone = rank_set(each.sides[0][0] for each in alike)
            return f"a failed {name} keeps {alone} from what the {group} waits in"
        case "skipped":
            (ahead, _), (behind, _) = first.sides
            return f"rank {behind} did not enter what rank {ahead} has launched in the {group}"
        case _:
            return f"{ranks} both send before they receive"


# Match hazards with those that a project accepts.


def accept_hazards(hazards: Hazards, accepted: Sequence[Acceptance], *, nodeid: str) -> Hazards:
    """Mark the hazards that are accepted.

    Args:
        hazards: All that a run of one test has shown.
        accepted: The entries of the project's file.
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


_IN_STREAMS = ("order", "racing", "buffered", "programs")
"""Rules about what a device does in the order of the launches, or where processes connect."""


def suspected_faults(hazards: Hazards, *, size: int) -> Mapping[Fault, Place | None]:
    """Return the faults that try hazards, each with the line that it is about.

    Args:
        hazards: What a run has shown; what is accepted is not tried.
        size: Ranks of the world.
    """
    return {
        fault: next(iter(hazard.places), None)
        for hazard in hazards.open
        for fault in _faults(hazard, size)
    }


def _faults(hazard: Hazard, size: int) -> Iterator[Fault]:
    """Yield faults that may make a hazard hang."""
    if hazard.rule in _IN_STREAMS:
        yield Fault("stream_order", tuple(range(size)), START, {})
    if hazard.rule == "threads":  # the thread that came first comes last on this rank
        [side] = hazard.sides
        operation = side.steps[0].operation
        if operation is not None:
            at = Point("collective", operation.name, side.steps[0].nth)
            yield Fault("hold", (side.rank,), at, {"until": "others-wait"})
    if hazard.rule == "unguarded":
        side = hazard.sides[0]
        if (point := side.steps[0].point) is not None:
            yield Fault("fails", (side.rank,), point, {})
