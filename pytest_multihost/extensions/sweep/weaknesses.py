"""Reduce runs to the weaknesses that they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_multihost.extensions.sweep.families import FAMILIES
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    Disturbance,
    DisturbedRun,
    UnsteadyRun,
    Weakness,
)

REPEATS = 5
"""How often a witness is repeated before it is told."""

MOST_WITNESSES = 3
"""How many runs of one weakness are repeated, one after the other, until one is steady."""

Counts = tuple[int, int]
"""How often a run was repeated, and how often that showed its weakness again."""


def find_weaknesses(
    runs: Sequence[DisturbedRun], repeats: Sequence[DisturbedRun] = ()
) -> tuple[Weakness, ...]:
    """Return what runs show: one weakness for each culprit line, waiting line and operation.

    Args:
        runs: One run of each disturbance.
        repeats: Further runs of some of them.
    """

    def counted(run: DisturbedRun) -> Counts:
        again = [each for each in repeats if each.disturbance == run.disturbance]
        return len(again), sum(shows_again(each, run) for each in again)

    shown: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        if run.outcome in WEAK:
            shown.setdefault(run.weakness_key, []).append(index)
    found = []
    for indices in shown.values():
        counts = {each: counted(runs[each]) for each in indices}
        witness = _witness(sorted(indices, key=lambda each: _mildness(runs[each])), counts)
        unsteady = tuple(
            UnsteadyRun(index, (times, again))
            for index, (times, again) in counts.items()
            if again < times and index != witness
        )
        found.append(
            Weakness(
                witness=runs[witness],
                shown_by=tuple(indices),
                repeated=counts[witness],
                unsteady=unsteady,
            )
        )
    return tuple(found)


def _witness(mildest: Sequence[int], counts: Mapping[int, Counts]) -> int:
    """Return which run is the witness: the first that no repeat has failed to repeat.

    If none of a few is, it is the one of them that was repeated best.

    Args:
        mildest: The runs, the mildest first.
        counts: How often each was repeated, and how often that showed the same.
    """
    tried = mildest[:MOST_WITNESSES]
    steady = [each for each in tried if counts[each][0] == counts[each][1]]
    if steady:
        return steady[0]
    return max(tried, key=lambda each: counts[each][1] / counts[each][0])


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


def _mildness(run: DisturbedRun) -> tuple[int, bool, float, float]:
    """Sort the mildest disturbance first, then the shortest lateness, then the shortest run.

    To be late at one point is milder than at all, and to fail once than from then on.
    """
    fault = run.disturbance.fault
    family = FAMILIES[run.disturbance.family].load()
    min_s = float(fault.params.get("min_s", 0.0))
    return family.mildness, fault.at.onwards, min_s, run.seconds
