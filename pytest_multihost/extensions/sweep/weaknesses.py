"""Reduces disturbed runs to weaknesses, and selects the runs to repeat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_multihost.extensions.sweep.families import FAMILIES
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    DisturbedRun,
    UnsteadyRun,
    Weakness,
)

REPEATS = 5
"""The number of repeats of a witness before the report."""

MOST_WITNESSES = 3
"""The number of runs of one weakness that are repeated, in turn, until one is steady."""

Counts = tuple[int, int]
"""The number of repeats of a run, and the number of these that showed its weakness again."""


def find_weaknesses(
    runs: Sequence[DisturbedRun], repeats: Sequence[DisturbedRun] = ()
) -> tuple[Weakness, ...]:
    """Return one weakness for each culprit line, waiting line and operation."""

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
    """Return the witness: the mildest run whose repeats all showed the weakness again.

    If none of the first `MOST_WITNESSES` runs is steady, the witness is the steadiest of them.
    """
    tried = mildest[:MOST_WITNESSES]
    steady = [each for each in tried if counts[each][0] == counts[each][1]]
    if steady:
        return steady[0]
    return max(tried, key=lambda each: counts[each][1] / counts[each][0])


def due_repeats(weaknesses: Iterable[Weakness], times: int = REPEATS) -> list[Weakness]:
    """Return the weaknesses whose witness has had fewer repeats, those with the fewest first."""
    due = [each for each in weaknesses if each.repeated[0] < times]
    return sorted(due, key=lambda each: each.repeated[0])


def shows_again(run: DisturbedRun, witness: DisturbedRun) -> bool:
    """Return whether a repeated run shows a weakness at a line of its witness.

    One equal line is enough: if several ranks wait at several lines, the reported line depends on
    timing.
    """
    if run.outcome not in WEAK or run.wrong_by != witness.wrong_by:
        return False
    return run.culprit == witness.culprit or run.waiting == witness.waiting


def _mildness(run: DisturbedRun) -> tuple[int, bool, float, float]:
    """Return a sort key: the mildest family, then once before onwards, then the shortest.

    A hold at one point is milder than at all points, and one failure milder than repeated ones.
    """
    fault = run.disturbance.fault
    family = FAMILIES[run.disturbance.family].load()
    min_s = float(fault.params.get("min_s", 0.0))
    return family.mildness, fault.at.onwards, min_s, run.seconds
