"""Returns the faults that try hazards: a hazard that hangs on this machine is a weakness."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.extensions.hazards.model import Hazards
from pytest_multihost.extensions.hazards.rule import HazardRule


def suspected_faults(
    hazards: Hazards, rules: Mapping[str, HazardRule], *, size: int
) -> Mapping[Fault, Place | None]:
    """Return the faults that try hazards, each with the first line of its hazard.

    Args:
        hazards: The hazards of a run. Accepted hazards are skipped.
        rules: The rules that found them, by name.
        size: The number of ranks.
    """
    return {
        fault: next(iter(hazard.places), None)
        for hazard in hazards.open
        for fault in rules[hazard.rule].disturb(hazard, size)
    }
