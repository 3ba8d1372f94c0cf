"""One run of pytest over several processes started by a launcher: torchrun, srun, mpirun.

All run the same command. Rank 0's process is the controller and works as in any other run. The
others collect the same tests, connect to it, start ranks for it and print nothing; see `agent`.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_multihost.launch.attach import Listener, Membership, given_secret, read_membership
from pytest_multihost.launch.attach.rendezvous import listen, rendezvous_path
from pytest_multihost.model.errors import LaunchError, MultihostError
from pytest_multihost.model.messages import Quit
from pytest_multihost.model.spec import ONE
from pytest_multihost.pytest_plugin.attach.collected_tests import collected_tests, first_difference
from pytest_multihost.pytest_plugin.attach.options import ATTACHED_PLUGIN
from pytest_multihost.pytest_plugin.attach.state import ATTACHED, Attached
from pytest_multihost.pytest_plugin.fixtures import requests_object_store
from pytest_multihost.pytest_plugin.options import ONE_PROCESS_ALONE, switch_off
from pytest_multihost.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.pytest_plugin.tally import TALLY
from pytest_multihost.pytest_private import base_temp

_OURS = ("ATTACH", "RANK", "SIZE", "ADDRESS", "SECRET", "SECRET_FILE")
_FAREWELL_S = 5.0


MEMBERSHIP = pytest.StashKey[Membership]()


def read_role(config: pytest.Config) -> None:
    """Find out this process's rank, and switch off its output if it is not the controller.

    Raises:
        pytest.UsageError: The environment gives no rank, or the process cannot be attached.
    """
    try:
        membership = config.stash[MEMBERSHIP] = read_membership(os.environ)
    except MultihostError as error:
        raise pytest.UsageError(str(error)) from error
    if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        message = "--multihost-attach and pytest-xdist's -n both make processes: leave out one"
        raise pytest.UsageError(message)
    if not membership.is_controller:
        switch_off(config, ONE_PROCESS_ALONE)


def attach(config: pytest.Config) -> None:
    """Listen for the peers as controller, or prepare to be a peer.

    Raises:
        pytest.UsageError: The secret cannot be used, or rank 0 cannot listen.
    """
    membership, tally = config.stash[MEMBERSHIP], config.stash[TALLY]
    settings = tally.settings
    tally.settings = replace(settings, ranks=settings.ranks or (membership.size,))
    rendezvous_file = rendezvous_path(settings.artifacts, membership)
    try:
        attached = Attached(
            membership, given_secret(os.environ), rendezvous_file, settings.startup_timeout_s
        )
        if membership.is_controller:
            stream, secret = listen(membership, attached.secret, rendezvous_file)
            attached.listener = Listener(membership, secret, stream)
    except (MultihostError, OSError) as error:
        raise pytest.UsageError(str(error)) from error
    for name in _OURS:  # ranks must not know the secret, nor attach runs inside of them
        os.environ.pop(f"PYTEST_MULTIHOST_{name}", None)
    config.stash[ATTACHED] = attached
    if membership.is_controller:
        plugin = sys.modules[__name__]
    else:
        from pytest_multihost.pytest_plugin.attach import agent as plugin

    config.pluginmanager.register(plugin, ATTACHED_PLUGIN)


def take_part(session: pytest.Session, chosen: Sequence[pytest.Item]) -> None:
    """Wait for the peers, and check that they have collected the same tests.

    Raises:
        pytest.UsageError: One did not connect, or has collected other tests.
    """
    config = session.config
    attached = config.stash[ATTACHED]
    listener = attached.listener
    if listener is None:
        return
    signal.signal(signal.SIGTERM, _on_term(attached))
    atexit.register(_hang_up, attached)  # peers take the connection's end for this process's
    try:
        listener.await_peers(attached.timeout_s)
        _compare(config, chosen, attached)
        _detect_local_peers(config, attached)
    except LaunchError as error:
        raise pytest.UsageError(str(error)) from error
    finally:
        listener.close()
        attached.rendezvous_file.unlink(missing_ok=True)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.verbosity >= 0:
        reporter.write_line(_describe(attached))


def _hang_up(attached: Attached) -> None:
    for peer in attached.peers.values():
        peer.stream.close()


def _compare(config: pytest.Config, chosen: Sequence[pytest.Item], attached: Attached) -> None:
    plans = plan_items(config, chosen, config.stash[TALLY].settings)
    _refuse(plans, chosen)
    ours = collected_tests(plans)
    for peer in attached.peers.values():
        if peer.hello.problems:
            seen = "\n".join(peer.hello.problems)
            raise LaunchError(f"{peer.name} cannot take part", seen=seen)
        difference = first_difference(ours, peer.hello.tests)
        if difference is not None:
            raise LaunchError(
                f"{peer.name} has collected other tests than rank 0's",
                seen=difference,
                remedy=(
                    "Give all the same command, code and configuration; and make collection"
                    " depend on nothing that differs between processes."
                ),
            )


def _refuse(plans: Mapping[str, Plan], chosen: Sequence[pytest.Item]) -> None:
    """Refuse tests with requirements that only one machine can meet.

    Raises:
        LaunchError: There are such tests; names them.
    """
    made = [plan.world.nodeid for plan in plans.values() if plan.world.hosts != ONE]
    stores = [item.nodeid for item in chosen if requests_object_store(item)]
    for nodeids, why in (
        (made, "hosts are made on one machine, and an attached run has its own"),
        (stores, "object_store is an endpoint of one machine, which others do not reach"),
    ):
        if nodeids:
            happened = f"{nodeids[0]} cannot be part of an attached run: {why}"
            raise LaunchError(happened, remedy="Leave it out, say with -k or a mark.")


def _detect_local_peers(config: pytest.Config, attached: Attached) -> None:
    """Find out which peers see the same processes and files as the controller."""
    token = secrets.token_hex(16)
    probe = base_temp(config) / f"attach-{token}"
    probe.write_text(token)
    try:
        for peer in attached.peers.values():
            peer.detect_locality(str(probe), token)
    finally:
        probe.unlink()


def _describe(attached: Attached) -> str:
    hosts = dict.fromkeys([socket.gethostname(), *(p.hello.host for p in attached.peers.values())])
    where = f"{len(hosts)} machines" if len(hosts) > 1 else "one machine"
    return (
        f"multihost: attached to {attached.membership.size} processes on {where},"
        f" as {attached.membership.source} has started them"
    )


def _on_term(attached: Attached) -> Any:  # noqa: ANN401 - a handler of signals
    """Return the SIGTERM handler: the launcher ends the run, which then reports what it was doing.

    It does nothing where a process is lost: that is being reported already.
    """

    def interrupt(*_: object) -> None:
        if not attached.note_losses():
            raise KeyboardInterrupt

    return interrupt


# Hooks of the controller


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """End the run when a process is lost: its ranks cannot be started any more."""
    session = item.session
    if call.when == "teardown" and (lost := session.config.stash[ATTACHED].note_losses()):
        session.shouldfail = f"multihost: {lost[0]}; no world can be started any more"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Send the peers the run's exit status, after all output is written."""
    try:
        return (yield)
    finally:
        for peer in session.config.stash[ATTACHED].peers.values():
            peer.send(Quit(int(session.exitstatus)))
            peer.stream.drain(time.monotonic() + _FAREWELL_S)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report which processes were lost."""
    for words in terminalreporter.config.stash[ATTACHED].lost:
        terminalreporter.write_line(f"multihost: {words}", red=True)
