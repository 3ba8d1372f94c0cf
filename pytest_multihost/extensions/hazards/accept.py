"""Marks the hazards that a project accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.extensions.hazards.model import Hazard, Hazards


def accept_hazards(hazards: Hazards, accepted: Sequence[Acceptance], *, nodeid: str) -> Hazards:
    """Mark the hazards of one test that the project's file accepts, and return all hazards."""
    mine = [each for each in accepted if each.is_for(nodeid)]
    return replace(hazards, found=tuple(_marked(each, mine) for each in hazards.found))


def _marked(hazard: Hazard, accepted: Sequence[Acceptance]) -> Hazard:
    reasons = (each.reason for each in accepted if _accepts(each, hazard))
    return replace(hazard, accepted=next(reasons, None))


def _accepts(acceptance: Acceptance, hazard: Hazard) -> bool:
    """Return whether an entry names the hazard's rule and one of its lines.

    If the entry names a second line, the hazard must have that line as well.
    """
    places = hazard.places
    return acceptance.hazard == hazard.rule and any(
        acceptance.fits(one, other) for one in places for other in (*places, None)
    )
