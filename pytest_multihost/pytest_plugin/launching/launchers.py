"""The launchers of one run: each is made and opened once, and kept until the run ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.launch.docker import ContainerLauncher
from pytest_multihost.launch.server import FallbackLauncher
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.spec import ONE, kind_of
from pytest_multihost.pytest_plugin.launching.container_launcher import container_launcher
from pytest_multihost.pytest_plugin.launching.launcher_factory import LauncherFactory
from pytest_multihost.pytest_plugin.launching.requirements import LaunchRequirements
from pytest_multihost.pytest_plugin.options import Settings
from pytest_multihost.pytest_private import base_temp


@dataclass(slots=True)
class Launchers:
    """One launcher for each set of requirements.

    Attributes:
        factory: Makes them.
        settings: The settings.
    """

    factory: LauncherFactory
    settings: Settings
    _local: dict[LaunchRequirements, FallbackLauncher] = field(default_factory=dict)
    _containers: dict[LaunchRequirements, ContainerLauncher] = field(default_factory=dict)
    _host_problems: dict[str, str] = field(default_factory=dict)

    def get(self, requirements: LaunchRequirements) -> FallbackLauncher | ContainerLauncher:
        """Return the launcher that meets `requirements`, open.

        Raises:
            UnsoundForkError: The way of launching that was asked for is not sound.
            LaunchError: A server cannot start.
        """
        if not requirements.has_containers:
            return self.get_local(requirements)
        if requirements not in self._containers:
            launcher = container_launcher(
                self.factory, self._mode(requirements), requirements.variables, self.settings
            )
            launcher.open()
            self._containers[requirements] = launcher
        return self._containers[requirements]

    def get_local(self, requirements: LaunchRequirements) -> FallbackLauncher:
        """Return the launcher that meets `requirements` by processes of this machine, open.

        Raises:
            UnsoundForkError: The way of launching that was asked for is not sound.
            LaunchError: A server cannot start.
        """
        if requirements not in self._local:
            launcher = self.factory.fallback_launcher(
                self._mode(requirements), requirements.variables
            )
            launcher.open()
            self._local[requirements] = launcher
        return self._local[requirements]

    def _mode(self, requirements: LaunchRequirements) -> str:
        return "spawn" if requirements.has_fresh_interpreters else self.settings.launch

    def _opened(
        self,
    ) -> Iterator[tuple[LaunchRequirements, FallbackLauncher | ContainerLauncher]]:
        yield from self._local.items()
        yield from self._containers.items()

    def host_problem(self, hosts: str, requirements: LaunchRequirements) -> str:
        """Return why this machine cannot make hosts of a kind, and what helps; empty if it can.

        Tried once for each kind of host in a run.

        Args:
            hosts: What hosts are made from; one host is always there.
            requirements: Their launcher tries it.
        """
        if hosts == ONE:
            return ""
        if (kind := kind_of(hosts)) not in self._host_problems:
            base = Path(tempfile.mkdtemp(prefix="hosts-", dir=base_temp(self.factory.config)))
            error = self.get(requirements).why_no_hosts(base / "trial")
            shutil.rmtree(base)
            self._host_problems[kind] = _in_one_line(error) if error else ""
        return self._host_problems[kind]

    def describe(self) -> str:
        """Say which ways of launching are in use, and what forced those that are not cheapest."""
        parts = []
        for requirements, launcher in self._opened():
            why = [*requirements.reasons, *launcher.reasons]
            parts.append(f"{launcher.name} ({'; '.join(why)})" if why else launcher.name)
        return ", ".join(dict.fromkeys(parts))

    def close(self) -> None:
        """End the servers, and every rank that is left."""
        for _, launcher in self._opened():
            launcher.close()


def _in_one_line(error: LaunchError) -> str:
    sentences = str(error).splitlines()
    return " ".join(each if each.endswith((".", ":")) else f"{each}." for each in sentences)
