"""Runs of pytest over several processes that a launcher or an engine has started.

This module finds out whether this is such a run, and the role of this process. Every run of pytest
imports it, so it imports nothing heavy. Two modules are imported only when they are needed:
`controller` has the additions to an ordinary run in rank 0's process, `agent` the work of every
other process. `peer_losses` ends a run that has lost a process, `other_runs` recognises a process
that another run has started. The package `driver` is the work of a process that starts the others
through an engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_multihost.core.forgotten import forget_secret
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.option import RANKS, STARTUP_TIMEOUT
from pytest_multihost.core.pytest_plugin.options import (
    ONE_PROCESS_ALONE,
    artifacts_directory,
    switch_off,
)
from pytest_multihost.core.pytest_plugin.tally import TALLY
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.extensions.engines.driver.options import ON
from pytest_multihost.extensions.engines.pytest_plugin.other_runs import (
    ATTACHED_PLUGIN,
    DRIVER_PLUGIN,
    IS_ORDERED,
    is_started_by_pytest,
)

if TYPE_CHECKING:
    from pytest_multihost.extensions.engines.attach import Peer
    from pytest_multihost.extensions.engines.driver.plugin import Driver


_HELP = (
    "Join the processes that torchrun, srun, mpirun or the like started with this same command:"
    " rank 0's process runs the tests, and every process starts its own rank of each test"
)
_VARIABLES = "PYTEST_MULTIHOST_JOIN", "PYTEST_MULTIHOST_ATTACH"
"""The second ones, here and below, are the names of version 0.2."""

_SETTINGS = "multihost_join", "multihost_attach"
_NO = ("", "0", "false", "no", "off")


def add_attach_option(parser: pytest.Parser) -> None:
    """Declare `--multihost-join`."""
    group = parser.getgroup("multihost", "tests on several ranks")
    flags = "--multihost-join", "--multihost-attach"
    group.addoption(*flags, dest="multihost_attach", action="store_true", default=None, help=_HELP)
    for name in _SETTINGS:
        parser.addini(name, _HELP, type="bool", default=False)


def _is_attached(config: pytest.Config) -> bool:
    """Return whether this process is part of an attached run."""
    if not _runs_tests(config) or IS_ORDERED in config.stash:
        return False
    if config.getoption("multihost_attach") is not None:
        return bool(config.getoption("multihost_attach"))
    if given := [os.environ[each] for each in _VARIABLES if each in os.environ]:
        return given[0].lower() not in _NO
    return any(config.getini(each) for each in _SETTINGS)


def _runs_tests(config: pytest.Config) -> bool:
    option = config.option
    runs_none = option.collectonly or getattr(option, "setupplan", False)
    return not (runs_none or option.help or option.version)


def _is_driver(config: pytest.Config) -> bool:
    """Return whether an engine is to start the ranks of this run."""
    is_wanted = config.stash[TALLY].settings.get(ON) is not None
    return is_wanted and _runs_tests(config) and not is_started_by_pytest(config)


def _drive(config: pytest.Config) -> None:
    """Ask an engine for nodes; see `driver`.

    Raises:
        pytest.UsageError: Something else also makes processes, or the engine cannot be used.
    """
    if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        message = "--multihost-on and pytest-xdist's -n both make processes: leave out one"
        raise usage_error(message)
    if _is_attached(config):
        raise usage_error("--multihost-on and --multihost-join exclude each other")
    from pytest_multihost.extensions.engines.driver.plugin import Driver

    offered = config.hook.pytest_multihost_engines()
    try:
        driver = Driver.start(config, [each for group in reversed(offered) for each in group])
    except (MultihostError, OSError) as error:
        raise usage_error(str(error)) from error
    config.pluginmanager.register(driver, DRIVER_PLUGIN)


def read_role(config: pytest.Config) -> None:
    """Find out this process's rank in an attached run; unless it is 0, switch off report files.

    Raises:
        pytest.UsageError: The environment gives no rank, or the process cannot be attached.
    """
    if not _is_attached(config):
        return
    if config.getoption(ON.dest):
        raise usage_error("--multihost-on and --multihost-join exclude each other")
    from pytest_multihost.core.launch.launcher_env import read_membership

    try:
        membership = read_membership(os.environ)
    except MultihostError as error:
        raise usage_error(str(error)) from error
    if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        message = "--multihost-join and pytest-xdist's -n both make processes: leave out one"
        raise usage_error(message)
    if membership.rank:
        switch_off(config, ONE_PROCESS_ALONE)


def attach(config: pytest.Config) -> None:
    """In an attached run, listen for the peers as controller, or prepare to be a peer.

    Raises:
        pytest.UsageError: The secret cannot be used, or rank 0 cannot listen.
    """
    if _is_driver(config):
        forget_secret()
        _drive(config)
        return
    if not _is_attached(config):
        forget_secret()
        return
    from pytest_multihost.extensions.engines.attach import Connector, Listener, Rendezvous

    tally = config.stash[TALLY]
    settings = tally.settings
    try:
        rendezvous = Rendezvous.read(os.environ, artifacts_directory(config, settings))
        listener = None if rendezvous.membership.rank else Listener(rendezvous)
    except (MultihostError, OSError) as error:
        raise usage_error(str(error)) from error
    if settings.get(RANKS) is None:
        tally.settings = settings.having(RANKS, (rendezvous.membership.size,))
    rendezvous.forget_variables()
    if listener is not None:
        from pytest_multihost.extensions.engines.pytest_plugin.controller import Controller

        plugin: object = Controller(listener, settings.get(STARTUP_TIMEOUT))
    else:
        from pytest_multihost.extensions.engines.peer_server import PeerProcess
        from pytest_multihost.extensions.engines.pytest_plugin.agent import Agent

        connect = partial(Connector(rendezvous).connect, settings.get(STARTUP_TIMEOUT))
        plugin = Agent(PeerProcess(connect))
    config.pluginmanager.register(plugin, ATTACHED_PLUGIN)


def driver_of(config: pytest.Config) -> Driver | None:
    """Return the driver of a run whose ranks the nodes of an engine start, once it has met these.

    None in other runs.
    """
    driver: Driver | None = config.pluginmanager.get_plugin(DRIVER_PLUGIN)
    return driver if driver is not None and driver.peers else None


def peers_of(config: pytest.Config) -> Mapping[int, Peer]:
    """Return the other processes of this run by rank; none except in its controller."""
    found = (config.pluginmanager.get_plugin(each) for each in (ATTACHED_PLUGIN, DRIVER_PLUGIN))
    return next((each.peers for each in found if each is not None), {})


def take_part(session: pytest.Session, chosen: Sequence[pytest.Item]) -> None:
    """Wait for the other processes of this run, or serve rank 0's; see `agent`."""
    config = session.config
    for name in (ATTACHED_PLUGIN, DRIVER_PLUGIN):
        if (plugin := config.pluginmanager.get_plugin(name)) is not None:
            plugin.take_part(session, chosen)
            return
    _hint_at_attach(config)


def _hint_at_attach(config: pytest.Config) -> None:
    """Say that this run is one of several of torchrun, each of which starts ranks of its own."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    count = os.environ.get("WORLD_SIZE", "1") if "TORCHELASTIC_RUN_ID" in os.environ else "1"
    if count == "1" or reporter is None:
        return
    if _runs_tests(config) and not is_started_by_pytest(config):
        reporter.write_line(
            f"multihost: each of the {count} processes of torchrun runs all tests, with ranks of"
            " its own; with --multihost-join the processes are the ranks"
        )
