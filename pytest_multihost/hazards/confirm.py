"""What to do to a test so that a hazard of its becomes a hang on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.model.fault import START, Fault, Point
from pytest_multihost.model.hazard import Hazard, Hazards
from pytest_multihost.model.sweep import Disturbance, RecordedPoint

_IN_STREAMS = ("order", "racing", "buffered", "programs")
"""Rules about what a device does in the order of the launches, or where processes connect."""


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


def _ranks(fault: Fault) -> tuple[int, ...]:
    return fault.ranks if isinstance(fault.ranks, tuple) else ()


def _passed(fault: Fault, hazard: Hazard) -> RecordedPoint:
    where = next(iter(hazard.places), None)
    return RecordedPoint(_ranks(fault)[0], fault.at, 0, where=where)
