"""Marks the weaknesses that a project accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.extensions.sweep.result import Weakness


def apply_acceptances(
    weaknesses: Sequence[Weakness], accepted: Sequence[Acceptance], *, nodeid: str
) -> tuple[tuple[Weakness, ...], tuple[Acceptance, ...]]:
    """Mark the weaknesses of one test that the project's file accepts.

    Returns:
        The weaknesses, and the entries for this test that match no weakness.
    """
    mine = [each for each in accepted if each.hazard is None and each.is_for(nodeid)]
    met: list[Acceptance] = []
    found = []
    for weakness in weaknesses:
        witness = weakness.witness
        fitting = [each for each in mine if each.fits(witness.culprit, witness.waiting)]
        met += fitting
        found.append(replace(weakness, accepted=fitting[0].reason) if fitting else weakness)
    return tuple(found), tuple(each for each in mine if each not in met)
