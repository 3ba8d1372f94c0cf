"""The words for kinds of faults, and the kinds that this package offers itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.extensions.sweep.result import NO_WORDS, Disturbance, FaultWords, SweepPlan
from pytest_multihost.faults.kind import FaultKind, kinds_by_name


@cache
def own_kinds() -> Mapping[str, FaultKind]:
    """Return the kinds by name."""
    return kinds_by_name(new_plugin_manager().hook.pytest_multihost_faults())


def with_words(plan: SweepPlan, kinds: Mapping[str, FaultKind]) -> SweepPlan:
    """Return the plan with the words for its faults, whose kinds plugins may offer."""
    found = tuple(
        replace(each, words=_words_of_kind(each.fault.kind, kinds)) for each in plan.disturbances
    )
    return replace(plan, disturbances=found)


def words_of(disturbance: Disturbance) -> FaultWords:
    """Return the words for a disturbance; without a plan, only this package's kinds have any."""
    planned = disturbance.words
    return planned if planned != NO_WORDS else _words_of_kind(disturbance.fault.kind, own_kinds())


def _words_of_kind(name: str, kinds: Mapping[str, FaultKind]) -> FaultWords:
    kind = kinds.get(name)
    return NO_WORDS if kind is None else FaultWords(kind.sentence, kind.mending)
