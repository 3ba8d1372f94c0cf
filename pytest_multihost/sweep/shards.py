"""Cut a plan into parts that run apart, and join their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pytest_multihost.model.sweep import (
    Disturbance,
    DisturbedRun,
    LeftOut,
    SweepPlan,
    SweepResult,
    SweepStatus,
    Weakness,
)
from pytest_multihost.sweep.weaknesses import Counts, reduce_runs


def shard_of(plan: SweepPlan, k: int, n: int) -> tuple[Disturbance, ...]:
    """Return the `k`-th of `n` parts of a plan, in its order; `k` counts from 1.

    Each part has a share of what is likely and of what is not.
    """
    return plan.disturbances[k - 1 :: n]


def merge_results(results: Sequence[SweepResult]) -> SweepResult:
    """Join results of one test: of shards, or of a sweep that was interrupted and went on.

    Of several runs of one disturbance the last counts.

    Args:
        results: At least one, in the order in which they were made.
    """
    first, last = results[0], results[-1]
    by_fault = {repr(run.disturbance.fault): run for each in results for run in each.runs}
    runs = tuple(by_fault.values())
    weaknesses = tuple(
        _with_acceptance(each, results) for each in reduce_runs(runs, _counted(results))
    )
    left_out = _left_out(results, runs)
    reasons = {each.reason for each in left_out}
    parts = {each.shard for each in results}
    unmet = [set(each.unmet_acceptances) for each in results]
    return replace(
        last,
        plan=max((each.plan for each in results), key=lambda plan: len(plan.disturbances)),
        status=_status(results, weaknesses, is_interrupted="interrupted" in reasons),
        reason=next((each.reason for each in results if each.reason), None) if reasons else None,
        runs=runs,
        weaknesses=weaknesses,
        left_out=left_out,
        unmet_acceptances=tuple(sorted(set[str].intersection(*unmet))),
        budget_s=sum(each.budget_s for each in results),
        duration_s=sum(each.duration_s for each in results),
        shard=first.shard if len(parts) == 1 else None,
    )


def _counted(results: Iterable[SweepResult]) -> Callable[[DisturbedRun], Counts]:
    """Return what says how often a run was repeated in all results, and showed the same again."""
    known: Counter[tuple[str, bool]] = Counter()
    for result in results:
        for weakness in result.weaknesses:
            told = [(result.runs[each.run], each.repeated) for each in weakness.unsteady]
            for run, (times, again) in [(weakness.witness, weakness.repeated), *told]:
                known[repr(run.disturbance.fault), False] += times
                known[repr(run.disturbance.fault), True] += again

    def counted(run: DisturbedRun) -> Counts:
        fault = repr(run.disturbance.fault)
        return known[fault, False], known[fault, True]

    return counted


def _with_acceptance(weakness: Weakness, results: Iterable[SweepResult]) -> Weakness:
    """Return a weakness with why it is accepted."""
    key = weakness.witness.weakness_key
    same = [
        each for result in results for each in result.weaknesses if each.witness.weakness_key == key
    ]
    accepted = next((each.accepted for each in same if each.accepted is not None), None)
    return replace(weakness, accepted=accepted)


def _left_out(results: Sequence[SweepResult], runs: Iterable[DisturbedRun]) -> tuple[LeftOut, ...]:
    """Return what none of the results has run.

    What other shards were to run is left out for their reasons, if they are there.
    """
    done = {repr(each.disturbance.fault) for each in runs}
    planned = {
        repr(each.fault): each.family for result in results for each in result.plan.disturbances
    }
    rest = Counter(family for fault, family in planned.items() if fault not in done)
    found = []
    for reason in _reasons(results):
        for family in rest:
            given = [
                each.count
                for result in results
                for each in result.left_out
                if (each.reason, each.family) == (reason, family)
            ]
            count = min(rest[family], sum(given))
            rest[family] -= count
            found.append(LeftOut(reason, family, count))
    return tuple(each for each in found if each.count)


_FOR_ANOTHER_RUN = ("interrupted", "budget", "shard")
"""Reasons why something is left to others: it may have been run by them."""


def _reasons(results: Iterable[SweepResult]) -> list[str]:
    """Return the reasons for leaving something out, those first that no other run changes."""
    given = {each.reason for result in results for each in result.left_out}
    return sorted(given, key=lambda each: (each in _FOR_ANOTHER_RUN, each))


def _status(
    results: Sequence[SweepResult], weaknesses: Sequence[Weakness], *, is_interrupted: bool
) -> SweepStatus:
    if any(each.fails_test for each in weaknesses):
        return "failed"
    if all(each.status == "not swept" for each in results):
        return "not swept"
    return "interrupted" if is_interrupted else "passed"
