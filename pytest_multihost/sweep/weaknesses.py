"""Reduce runs to the weaknesses that they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_multihost.model.sweep import (
    WEAK,
    Disturbance,
    DisturbedRun,
    Family,
    Weakness,
)

REPEATS = 5
"""How often a witness is repeated before it is told."""

_MILDNESS: Mapping[Family, int] = {"late": 0, "differs": 1, "fails": 2, "errors": 4, "killed": 5}
"""The mildest family first; a call that fails from then on is between the last three."""

_FAILS_ONWARDS = 3


def find_weaknesses(
    runs: Sequence[DisturbedRun], repeats: Sequence[DisturbedRun] = ()
) -> tuple[Weakness, ...]:
    """Return what runs show: one weakness for each culprit line, waiting line and operation.

    Args:
        runs: One run of each disturbance.
        repeats: Further runs of witnesses.
    """
    shown: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        if run.outcome in WEAK:
            shown.setdefault(run.weakness_key, []).append(index)
    found = []
    for indices in shown.values():
        witness = min((runs[each] for each in indices), key=_mildness)
        again = [each for each in repeats if each.disturbance == witness.disturbance]
        repeated = len(again), sum(shows_again(each, witness) for each in again)
        found.append(Weakness(witness=witness, shown_by=tuple(indices), repeated=repeated))
    return tuple(found)


def next_repeat(weaknesses: Sequence[Weakness], times: int = REPEATS) -> Disturbance | None:
    """Return the witness to repeat next; None if all have been repeated often enough."""
    due = [each for each in weaknesses if each.repeated[0] < times]
    first = min(due, key=lambda each: each.repeated[0], default=None)
    return first.witness.disturbance if first is not None else None


def shows_again(run: DisturbedRun, witness: DisturbedRun) -> bool:
    """Return whether a repeated run shows a weakness at a line of its witness's.

    Of several ranks that wait at several lines, it depends on timing which of them is told.
    """
    if run.outcome not in WEAK:
        return False
    return run.culprit == witness.culprit or run.waiting == witness.waiting


def _mildness(run: DisturbedRun) -> tuple[int, float, float]:
    """Sort the mildest disturbance first, then the shortest lateness, then the shortest run."""
    fault = run.disturbance.fault
    rank = _MILDNESS[run.disturbance.family]
    if run.disturbance.family == "fails" and fault.at.onwards:
        rank = _FAILS_ONWARDS
    return rank, float(fault.params.get("min_s", 0.0)), run.seconds
