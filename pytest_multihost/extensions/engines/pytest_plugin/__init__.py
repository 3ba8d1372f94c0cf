"""Runs of pytest over several processes that a launcher has started.

This module finds out whether this is such a run, and the role of this process. Every run of pytest
imports it, so it imports nothing heavy. Two modules are imported only when they are needed:
`controller` has the additions to an ordinary run in rank 0's process, `agent` the work of every
other process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.pytest_plugin.options import (
    ONE_PROCESS_ALONE,
    RANKS,
    STARTUP_TIMEOUT,
    artifacts_directory,
    switch_off,
)
from pytest_multihost.core.pytest_plugin.tally import TALLY

if TYPE_CHECKING:
    from pytest_multihost.extensions.engines.attach import Peer


_HELP = (
    "Join the processes that torchrun, srun, mpirun or the like started with this same command:"
    " rank 0's process runs the tests, and every process starts its own rank of each test"
)
_ENV = "PYTEST_MULTIHOST_ATTACH"
_NO = ("", "0", "false", "no", "off")

ATTACHED_PLUGIN = "multihost_attached"
"""Name of the plugin that attached runs register."""


def add_attach_option(parser: pytest.Parser) -> None:
    """Declare `--multihost-attach`."""
    group = parser.getgroup("multihost", "tests on several ranks")
    group.addoption("--multihost-attach", action="store_true", default=None, help=_HELP)
    parser.addini("multihost_attach", _HELP, type="bool", default=False)


def _is_attached(config: pytest.Config) -> bool:
    """Return whether this process is part of an attached run."""
    option = config.option
    runs_no_test = option.collectonly or getattr(option, "setupplan", False)
    if runs_no_test or option.help or option.version:
        return False
    if config.getoption("multihost_attach") is not None:
        return bool(config.getoption("multihost_attach"))
    if _ENV in os.environ:
        return os.environ[_ENV].lower() not in _NO
    return bool(config.getini("multihost_attach"))


def read_role(config: pytest.Config) -> None:
    """Find out this process's rank in an attached run; unless it is 0, switch off report files.

    Raises:
        pytest.UsageError: The environment gives no rank, or the process cannot be attached.
    """
    if not _is_attached(config):
        return
    from pytest_multihost.core.launch.launcher_env import read_membership

    try:
        membership = read_membership(os.environ)
    except MultihostError as error:
        raise pytest.UsageError(str(error)) from error
    if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        message = "--multihost-attach and pytest-xdist's -n both make processes: leave out one"
        raise pytest.UsageError(message)
    if membership.rank:
        switch_off(config, ONE_PROCESS_ALONE)


def attach(config: pytest.Config) -> None:
    """In an attached run, listen for the peers as controller, or prepare to be a peer.

    Raises:
        pytest.UsageError: The secret cannot be used, or rank 0 cannot listen.
    """
    if not _is_attached(config):
        return
    from pytest_multihost.extensions.engines.attach import Listener, Rendezvous

    tally = config.stash[TALLY]
    settings = tally.settings
    try:
        rendezvous = Rendezvous.read(os.environ, artifacts_directory(config, settings))
        listener = None if rendezvous.membership.rank else Listener(rendezvous)
    except (MultihostError, OSError) as error:
        raise pytest.UsageError(str(error)) from error
    if settings.get(RANKS) is None:
        tally.settings = settings.having(RANKS, (rendezvous.membership.size,))
    rendezvous.forget_variables()
    if listener is not None:
        from pytest_multihost.extensions.engines.pytest_plugin.controller import Controller

        plugin: object = Controller(listener, settings.get(STARTUP_TIMEOUT))
    else:
        from pytest_multihost.extensions.engines.pytest_plugin.agent import Agent

        plugin = Agent(rendezvous, settings.get(STARTUP_TIMEOUT))
    config.pluginmanager.register(plugin, ATTACHED_PLUGIN)


def peers_of(config: pytest.Config) -> Mapping[int, Peer]:
    """Return the other processes of an attached run by rank; none except in its controller."""
    attached = config.pluginmanager.get_plugin(ATTACHED_PLUGIN)
    return attached.peers if attached is not None else {}


def take_part(session: pytest.Session, chosen: Sequence[pytest.Item]) -> None:
    """Wait for the other processes of an attached run, or serve rank 0's; see `agent`."""
    attached = session.config.pluginmanager.get_plugin(ATTACHED_PLUGIN)
    if attached is not None:
        attached.take_part(session, chosen)
