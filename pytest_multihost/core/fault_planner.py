"""The interface to the extension that reads and checks the faults of tests and scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pluggy

from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.core.model.fault import Fault, FaultFacts
from pytest_multihost.core.model.role import RoleSpec
from pytest_multihost.core.model.spec import Host

_NONE = "no plugin performs faults, because multihost_faults is switched off"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFaults:
    """The faults of a world.

    Attributes:
        faults: With numbers for ranks; empty if there are problems.
        facts: Facts about their kinds, by kind.
        problems: Why the world cannot have them.
    """

    faults: tuple[Fault, ...] = ()
    facts: Mapping[str, FaultFacts] = field(default_factory=dict)
    problems: Sequence[str] = ()


class FaultPlanner(Protocol):
    """Reads and checks faults; offered through the hook `pytest_multihost_fault_planner`."""

    def parse(self, text: str) -> Fault:
        """Return the fault that a text describes, as on the command line.

        Raises:
            SettingError: It describes none.
        """

    def plan(
        self,
        faults: Sequence[Fault],
        *,
        size: int,
        seed: int,
        hosts: Sequence[Host],
        roles: tuple[RoleSpec, ...],
    ) -> PlannedFaults:
        """Return the faults of a world with all problems.

        Args:
            faults: As the user gives them: they may name ranks by words and roles.
            seed: Decides which rank is "one".
            hosts: The world's hosts; empty: its ranks are on this machine.
        """

    def lacking(self, fault: Fault) -> str | None:
        """Return the part that this machine lacks for a fault; None or empty: none."""


class _NoFaults:
    """Where no plugin performs faults, a world has none."""

    def parse(self, text: str) -> Fault:
        """Raise a SettingError."""
        raise SettingError(f"{text}: {_NONE}")

    def plan(
        self,
        faults: Sequence[Fault],
        *,
        size: int,  # noqa: ARG002 - as the others
        seed: int,  # noqa: ARG002
        hosts: Sequence[Host],  # noqa: ARG002
        roles: tuple[RoleSpec, ...],  # noqa: ARG002
    ) -> PlannedFaults:
        """Return that each fault is a problem."""
        return PlannedFaults(problems=[f"{each!r}: {_NONE}" for each in faults])

    def lacking(self, _fault: Fault) -> str | None:
        """Return that this machine cannot perform faults."""
        return _NONE


def offered_planner(hook: pluggy.HookRelay) -> FaultPlanner:
    """Return the planner that reads and checks faults in this process."""
    kinds = hook.pytest_multihost_faults()
    found: FaultPlanner | None = hook.pytest_multihost_fault_planner(kinds=kinds)
    return found or _NoFaults()
