"""Match hazards with those that a project accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.extensions.hazards.model import Hazard, Hazards


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
