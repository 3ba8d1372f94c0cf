"""Faults that freeze ranks for good: a frozen rank never arrives, and only the fault stopped it."""

from __future__ import annotations

from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.outcome.active_faults import frozen_for_good


def as_late(cause: Cause, result: WorldResult) -> Cause:
    """Return a stopped rank as late, or stuck, if a fault has frozen it.

    "stopped" means that no fault has done it.
    """
    if cause.kind != "stopped" or planned_freeze(cause, result) is None:
        return cause
    return replace(cause, kind="straggler" if cause.waiting else "stuck")


def planned_freeze(cause: Cause, result: WorldResult) -> Fault | None:
    """Return the fault that keeps the culprits frozen, if faults freeze all of them for good."""
    frozen = frozen_for_good(result.spec.faults, result.history)
    is_planned = bool(cause.culprits) and frozen.keys() >= set(cause.culprits)
    may_be_frozen = kind_of(cause.kind).culprit in ("still", "held")
    return frozen[cause.culprits[0]] if is_planned and may_be_frozen else None
