"""Runs in which processes on other machines start the ranks.

Either a launcher such as torchrun has started these processes, with pytest as one of them, or
pytest has an engine start them: Slurm, Ray, ssh or any command.

* `attach` connects the processes of a launcher, and starts ranks through all of them.
* `pytest_plugin` uses it for tests, `joined_script` for ``multihost run``.
* `peer_server` is the work of every process except rank 0's.
* `engine` has the interfaces to engines, `cluster` the built-in ones, and `driver` the work of
  pytest in its own process and in the peers that an engine starts.
* `meeting` connects processes for other commands, such as ``multihost attach``.
* `manifest` prints a manifest for Kubernetes.
* `hookspecs` has the hooks for other extensions and plugins.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.command.joined_script import JoinedScript
    from pytest_multihost.core.launch import Launcher
    from pytest_multihost.core.launch.meeting import Meeting
    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.option import Option
    from pytest_multihost.core.pytest_plugin.other_machines import OtherMachines
    from pytest_multihost.extensions.engines.engine import Engine
    from pytest_multihost.hookspecs import Commands, ServiceKind


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook of attached runs."""
    from pytest_multihost.extensions.engines import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--multihost-join`."""
    from pytest_multihost.extensions.engines.pytest_plugin import add_attach_option

    add_attach_option(parser)


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer the options of runs on other machines."""
    from pytest_multihost.extensions.engines.driver.options import OPTIONS

    return OPTIONS


@hookimpl
def pytest_multihost_engines() -> Sequence[Engine]:
    """Offer the built-in engines."""
    from pytest_multihost.extensions.engines.cluster import built_in_engines

    return built_in_engines()


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the service of ranks that engines signal."""
    from pytest_multihost.extensions.engines.driver.lingering import LINGERING

    return [LINGERING]


@hookimpl
def pytest_multihost_other_machines(config: pytest.Config) -> OtherMachines | None:
    """Return the nodes that an engine has provided for this run."""
    from pytest_multihost.extensions.engines.pytest_plugin import driver_of

    return driver_of(config)


@hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Find out which process of an attached run this is, before plugins read their options."""
    from pytest_multihost.extensions.engines.pytest_plugin import read_role

    read_role(config)


@hookimpl(trylast=True)  # the core has read the settings
def pytest_configure(config: pytest.Config) -> None:
    """Attach to the other processes if this is an attached run."""
    from pytest_multihost.extensions.engines.pytest_plugin import attach

    attach(config)


@hookimpl
def pytest_multihost_controller_only() -> Mapping[str, object]:
    """Return the option that makes a process part of an attached run."""
    return {"multihost_attach": False}


@hookimpl(tryfirst=True)  # before anything starts, because only rank 0's process returns
def pytest_multihost_collected(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Take part in an attached run; returns only in rank 0's process."""
    from pytest_multihost.extensions.engines.pytest_plugin import take_part

    take_part(session, items)


@hookimpl(wrapper=True)
def pytest_multihost_prepare(item: pytest.Item) -> Generator[None, WorldSpec, WorldSpec]:
    """Assign the ranks to the machines of the attached run, if there are several."""
    from pytest_multihost.extensions.engines.pytest_plugin import driver_of, peers_of

    spec, peers = (yield), peers_of(item.config)
    if (driver := driver_of(item.config)) is not None:
        return driver.prepare(spec)
    if not peers:
        return spec
    from pytest_multihost.extensions.engines.attach import hosts_of, with_controller

    return replace(spec, hosts=hosts_of(spec.size, with_controller(peers)) or spec.hosts)


@hookimpl(wrapper=True)
def pytest_multihost_launch(item: pytest.Item) -> Generator[None, Launcher, Launcher]:
    """Start the ranks through all processes of the attached run."""
    from pytest_multihost.extensions.engines.pytest_plugin import peers_of

    launcher, peers = (yield), peers_of(item.config)
    if not peers:
        return launcher
    from pytest_multihost.core.launch.server import ServerLauncher
    from pytest_multihost.extensions.engines.attach import PeersLauncher, with_controller

    if not isinstance(launcher, ServerLauncher):
        return launcher
    return PeersLauncher("attach", with_controller(peers), launcher)


@hookimpl
def pytest_multihost_processes(config: pytest.Config) -> Collection[int]:
    """Return the other processes of the attached run on this machine."""
    from pytest_multihost.extensions.engines.pytest_plugin import peers_of

    peers = [each for each in peers_of(config).values() if each.is_local]
    return [each.hello.pid for each in peers if each.hello.pid]


@hookimpl
def pytest_multihost_run_joined(script: JoinedScript) -> int:
    """Run a script in the processes that a launcher has started."""
    from pytest_multihost.extensions.engines.joined_script import run_joined

    return run_joined(script)


@hookimpl
def pytest_multihost_meeting(folder: Path) -> Meeting:
    """Return this process's meeting with the others of its launcher."""
    from pytest_multihost.extensions.engines.meeting import LauncherMeeting

    return LauncherMeeting.at(folder, os.environ)


@hookimpl
def pytest_multihost_commands(commands: Commands) -> None:
    """Add ``multihost manifest``."""
    from pytest_multihost.extensions.engines.manifest import add_manifest

    add_manifest(commands)
