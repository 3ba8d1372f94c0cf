"""The plugin of a peer that an engine has started; see `start_peer`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.launch.wire import FrameStream
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.messages import CollectedTest, ToPeer
from pytest_multihost.core.pytest_plugin.options import switch_off
from pytest_multihost.core.pytest_plugin.server_process import ONLY_SERVES
from pytest_multihost.extensions.engines.attach.connect import hello_at, prove
from pytest_multihost.extensions.engines.attach.rendezvous import RefusedError
from pytest_multihost.extensions.engines.driver.order import PeerOrder
from pytest_multihost.extensions.engines.driver.versions import relevant_versions
from pytest_multihost.extensions.engines.peer_server import PeerProcess
from pytest_multihost.extensions.engines.pytest_plugin.agent import Agent
from pytest_multihost.extensions.engines.pytest_plugin.other_runs import (
    ATTACHED_PLUGIN,
    IS_ORDERED,
)

_COLLECT_S = 600.0
"""How long the driver may take to answer: it may still be collecting."""

_INTERFACE = "GLOO_SOCKET_IFNAME"

_ELSEWHERE = ("192.0.2.1", 9)
"""An address that no machine has (RFC 5737), and a port; nothing is sent there."""


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class OrderedPeer:
    """Makes this run of pytest the peer of a driver."""

    order: PeerOrder
    connection: socket.socket

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Note that this process is a peer, before plugins read their options."""
        early_config.stash[IS_ORDERED] = True
        close_in_children(self.connection)  # the server is forked before the connection is used

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Switch off options for the driver alone, such as choosing the tests that failed last."""
        for options in (ONLY_SERVES, *config.hook.pytest_multihost_controller_only()):
            switch_off(config, options)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Register the agent that serves the driver once the tests are collected."""
        connect = partial(connect_to_driver, self.order, self.connection, config.rootpath)
        agent = Agent(PeerProcess(connect), outlives_controller=False)
        config.pluginmanager.register(agent, ATTACHED_PLUGIN)


def connect_to_driver(
    order: PeerOrder,
    connection: socket.socket,
    root: Path,
    *,
    tests: tuple[CollectedTest, ...],
    problems: tuple[str, ...],
) -> FrameStream[ToPeer]:
    """Authenticate a connection to the driver, and send this process's hello.

    Args:
        tests: The collected tests, see `PeerHello`.
        problems: Why this process cannot take part.

    Raises:
        LaunchError: The driver is gone, or refuses this process.
    """
    until_s = time.monotonic() + _COLLECT_S
    try:
        secret = bytes.fromhex(order.secret)
        stream, welcome = prove(connection, secret, order.membership, until_s)
    except (OSError, RefusedError) as error:
        raise LaunchError("pytest's own process has gone", seen=str(error)) from error
    hello = replace(
        hello_at(own_address(), tests, problems),
        root=str(root),
        versions=relevant_versions(),
    )
    stream.send(WireFrame(hello, number=welcome.number))
    return stream


def own_address() -> str:
    """Return the address at which other machines most likely reach this one.

    This is the address of the interface that `GLOO_SOCKET_IFNAME` names; otherwise that of the
    default route; without one, the first that is not the loopback's.
    """
    wanted = _outer_addresses(only=os.environ.get(_INTERFACE))
    if wanted and _INTERFACE in os.environ:
        return wanted[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            pass
    return next(iter(_outer_addresses()), "127.0.0.1")


def _outer_addresses(*, only: str | None = None) -> Sequence[str]:
    """Return the addresses of this machine's interfaces, or only those of one."""
    up = {name for name, each in psutil.net_if_stats().items() if each.isup}
    return [
        each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if name in up and only in (None, name)
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
