"""Other machines that start the ranks of a run, in place of this one."""

from __future__ import annotations

from typing import Protocol

from pytest_multihost.core.launch import Launcher
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.pytest_plugin.plan import Plan


class OtherMachines(Protocol):
    """Machines on which all ranks of a run live; pytest's own process starts none."""

    @property
    def launcher(self) -> Launcher:
        """Starts worlds there."""

    def lacking(self, plan: Plan, spec: WorldSpec) -> str:
        """Return why these machines cannot run a world; empty if they can.

        Raises:
            LaunchError: A machine is gone, or does not answer.
        """
