"""Reduce runs to the weaknesses that they show."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.model.sweep import Disturbance, DisturbedRun, Weakness

REPEATS = 5
"""How often a witness is repeated before it is told."""


def find_weaknesses(
    runs: Sequence[DisturbedRun], repeats: Sequence[DisturbedRun] = ()
) -> tuple[Weakness, ...]:
    """Return what runs show: one weakness for each culprit line, waiting line and operation.

    Args:
        runs: One run of each disturbance.
        repeats: Further runs of witnesses.
    """
    raise NotImplementedError


def next_repeat(weaknesses: Sequence[Weakness], times: int = REPEATS) -> Disturbance | None:
    """Return the witness to repeat next; None if all have been repeated often enough."""
    raise NotImplementedError
