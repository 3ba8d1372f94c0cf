"""Reads and checks faults, for the plan of a world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.core.fault_planner import PlannedFaults
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.role import RoleSpec
from pytest_multihost.core.model.spec import Host
from pytest_multihost.extensions.faults.fault_text import parse_fault
from pytest_multihost.extensions.faults.validation import resolve_faults
from pytest_multihost.faults.kind import FaultKind


@dataclass(frozen=True, slots=True)
class Planner:
    """The planner of faults.

    Attributes:
        kinds: The kinds of faults, by name.
    """

    kinds: Mapping[str, FaultKind]

    def parse(self, text: str) -> Fault:
        """Return the fault that a text describes.

        Raises:
            SettingError: It describes none.
        """
        return parse_fault(text)

    def plan(
        self,
        faults: Sequence[Fault],
        *,
        size: int,
        seed: int,
        hosts: Sequence[Host],
        roles: tuple[RoleSpec, ...],
    ) -> PlannedFaults:
        """Return the faults of a world with all problems; see `FaultPlanner`."""
        found, problems = resolve_faults(
            faults, size=size, seed=seed, hosts=hosts, kinds=self.kinds, roles=roles
        )
        facts = {each.kind: self.kinds[each.kind].facts for each in found}
        return PlannedFaults(faults=found, facts=facts, problems=problems)

    def lacking(self, fault: Fault) -> str | None:
        """Return the part that this machine lacks for a fault; None or empty: none."""
        return self.kinds[fault.kind].lacking(fault)
