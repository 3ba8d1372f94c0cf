"""Cut a plan into parts that run apart, and join their results."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.model.sweep import Disturbance, SweepPlan, SweepResult


def shard_of(plan: SweepPlan, k: int, n: int) -> tuple[Disturbance, ...]:
    """Return the `k`-th of `n` parts of a plan, in its order; `k` counts from 1."""
    raise NotImplementedError


def merge_results(results: Sequence[SweepResult]) -> SweepResult:
    """Join results of one test: of shards, or of a sweep that was interrupted and went on."""
    raise NotImplementedError
