"""The disturbances that try hazards: a hazard that hangs on this machine is a weakness."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.hazard import Hazard, Hazards
from pytest_multihost.core.model.sweep import Disturbance, RecordedPoint
from pytest_multihost.extensions.hazards.rule import HazardRule


def disturbances_of(
    hazards: Hazards, rules: Mapping[str, HazardRule], *, size: int, class_: int = 0
) -> tuple[Disturbance, ...]:
    """Return the disturbances that try hazards: what hangs then is a finding with a token.

    Args:
        hazards: What a run has shown. A hazard that the project accepts is not tried.
        rules: The rules that have found them, by name.
        size: Ranks of the world.
        class_: Number of the class of the first one: each is a class of its own.
    """
    found = {
        fault: hazard
        for hazard in hazards.open
        for fault in rules[hazard.rule].disturb(hazard, size)
    }
    return tuple(
        Disturbance("hazards", fault, _ranks(fault), _passed(fault, hazard), number)
        for number, (fault, hazard) in enumerate(found.items(), class_)
    )


def _ranks(fault: Fault) -> tuple[int, ...]:
    return fault.ranks if isinstance(fault.ranks, tuple) else ()


def _passed(fault: Fault, hazard: Hazard) -> RecordedPoint:
    where = next(iter(hazard.places), None)
    return RecordedPoint(_ranks(fault)[0], fault.at, 0, where=where)
