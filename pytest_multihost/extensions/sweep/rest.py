"""Selects and orders the remaining disturbances of a sweep; skips needless ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.extensions.sweep.families import FAMILIES
from pytest_multihost.extensions.sweep.result import WEAK, Disturbance, DisturbedRun


def order_rest(
    rest: Sequence[Disturbance],
    runs: Sequence[DisturbedRun],
    running: Sequence[Disturbance] = (),
) -> tuple[Disturbance, ...]:
    """Return the disturbances that may show something new, in the order of their runs.

    Skips a disturbance if its class has shown a weakness, or if a finished or running run makes it
    redundant. Disturbances at lines that have shown weaknesses come last.

    Args:
        rest: The disturbances without a run, in the plan's order.
    """
    weak = [each.disturbance for each in runs if each.outcome in WEAK]
    known = _KnownRuns(runs, running)
    lines = Counter(map(_line, weak))
    useful = [each for each in rest if known.leaves_open(each)]
    return tuple(sorted(useful, key=lambda each: lines[_line(each)]))


_FaultKey = tuple[object, ...]


@dataclass(frozen=True)
class _KnownRuns:
    """The finished and the running runs of a sweep."""

    runs: Sequence[DisturbedRun]
    running: Sequence[Disturbance]

    def leaves_open(self, disturbance: Disturbance) -> bool:
        """Return whether a disturbance may show something new."""
        family, fault = FAMILIES[disturbance.family].load(), disturbance.fault
        if _class(disturbance) in self._closed:
            return False
        if any(family.is_shown_by(disturbance, run) for run in self._by_class(disturbance)):
            return False
        decider = family.decided_by(fault)
        if decider is None:
            return True
        run = self._by_fault.get(_key(decider))
        is_needless = run is not None and family.is_needless(fault, run)
        return not is_needless and _key(decider) not in self._deciding

    @cached_property
    def _closed(self) -> set[Hashable]:
        """The classes that have shown a weakness, or have a running disturbance."""
        weak = [each.disturbance for each in self.runs if each.outcome in WEAK]
        return {_class(each) for each in (*weak, *self.running)}

    @cached_property
    def _deciding(self) -> set[_FaultKey]:
        return {_key(each.fault) for each in self.running}

    @cached_property
    def _by_fault(self) -> Mapping[_FaultKey, DisturbedRun]:
        return {_key(each.disturbance.fault): each for each in self.runs}

    @cached_property
    def _runs_of(self) -> Mapping[Hashable, Sequence[DisturbedRun]]:
        return group_by_value((_class(each.disturbance), each) for each in self.runs)

    def _by_class(self, disturbance: Disturbance) -> Sequence[DisturbedRun]:
        return self._runs_of.get(_class(disturbance), ())


def _key(fault: Fault) -> _FaultKey:
    return fault.kind, fault.ranks, fault.at, repr(sorted(fault.params.items()))  # some are lists


def _class(disturbance: Disturbance) -> Hashable:
    """Return the key of a disturbance's class."""
    return disturbance.family, disturbance.role, disturbance.class_


def _line(disturbance: Disturbance) -> Hashable:
    """Return the key of disturbances of one family and role at one line."""
    passed = disturbance.passed
    where = passed.where
    line = (where.file, where.line) if where is not None else passed.point.name
    return disturbance.family, disturbance.role, line
