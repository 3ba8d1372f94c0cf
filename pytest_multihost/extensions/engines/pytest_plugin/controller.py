"""The two kinds of processes in an attached run of pytest: `Controller` and `Agent`.

Rank 0's process is the controller, and works as in any other run. The other processes run the same
command: they collect the same tests, connect to the controller, start ranks for it and print
nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_multihost.core.model.errors import LaunchError, MultihostError
from pytest_multihost.core.model.messages import CollectedTest
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.core.pytest_plugin.tally import TALLY
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.core.pytest_private import base_temp
from pytest_multihost.extensions.engines.attach import (
    Listener,
    Peer,
    detect_local_peers,
    require_one_machine,
)
from pytest_multihost.extensions.engines.pytest_plugin.peer_losses import PeerLosses

_REMEDY = (
    "Every process must run the same pytest command, with --multihost-join, and reach rank 0."
    " Give a slow start more time: --multihost-startup-timeout=SECONDS"
)


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class Controller:
    """The plugin with the controller's additional work in an attached run.

    Attributes:
        timeout_s: Timeout of the wait for the peers.
    """

    listener: Listener
    timeout_s: float

    @property
    def peers(self) -> Mapping[int, Peer]:
        """The other processes."""
        return self.listener.peers

    def take_part(self, session: pytest.Session, chosen: Sequence[pytest.Item]) -> None:
        """Wait for the peers, and check that they have collected the same tests.

        Raises:
            pytest.UsageError: A peer did not connect, or has collected other tests.
        """
        losses = PeerLosses(self.peers)
        session.config.pluginmanager.register(losses, "multihost_peer_losses")
        losses.take_signals()
        try:
            self.listener.await_peers(self.timeout_s, remedy=_REMEDY)
            plans = plan_items(session.config, chosen, session.config.stash[TALLY].settings)
            refuse(session.config, plans, chosen)
            for peer in self.peers.values():
                require_same_tests(collected_tests(plans), peer, peer.hello.tests)
            detect_local_peers(self.peers, base_temp(session.config))
            for plan in plans.values():
                require_one_machine(self.peers, plan.world)
        except MultihostError as error:
            raise usage_error(str(error)) from error
        finally:
            self.listener.close()
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.verbosity >= 0:
            membership = self.listener.membership
            hosts = {socket.gethostname(), *(peer.hello.host for peer in self.peers.values())}
            reporter.write_line(
                f"multihost: attached to {membership.size} processes on"
                f" {f'{len(hosts)} machines' if len(hosts) > 1 else 'one machine'},"
                f" as {membership.source} has started them"
            )

    # Hooks

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Send the peers the run's exit status, after all output is written."""
        try:
            return (yield)
        finally:
            for peer in self.peers.values():
                peer.part(int(session.exitstatus))


_MADE = "hosts are made on one machine, and this run has its own"
_ROLES = "its roles share the network and the files of one machine"


def refuse(
    config: pytest.Config,
    plans: Mapping[str, Plan],
    chosen: Sequence[pytest.Item],
    *,
    run: str = "an attached run",
) -> None:
    """Refuse tests with requirements that only one machine can meet.

    Args:
        run: The kind of this run, for the error.

    Raises:
        LaunchError: There are such tests; the error names the first.
    """
    worlds = [plan.world for plan in plans.values()]
    found = [(each.nodeid, _ROLES) for each in worlds if each.roles]
    found += [(each.nodeid, _MADE) for each in worlds if each.hosts]
    for item in chosen:
        whys = config.hook.pytest_multihost_needs_one_machine(item=item)
        found += [(item.nodeid, why) for why in whys]
    for nodeid, why in found:
        happened = f"{nodeid} cannot be part of {run}: {why}"
        raise LaunchError(happened, remedy="Leave it out, say with -k or a mark.")


def require_same_tests(
    ours: Sequence[CollectedTest], peer: Peer, theirs: Sequence[CollectedTest]
) -> None:
    """Check that a peer can take part, and has collected the tests that this process has.

    Raises:
        LaunchError: The peer has collected other tests, or cannot take part.
    """
    if peer.hello.problems:
        seen = "\n".join(peer.hello.problems)
        raise LaunchError(f"{peer.name} cannot take part", seen=seen)
    if difference := first_difference(ours, theirs):
        root = f"\nIts rootdir is {peer.hello.root}." if peer.hello.root else ""
        raise LaunchError(
            f"{peer.name} has collected other tests than this process",
            seen=f"{difference}{root}",
            remedy=(
                "Give all processes one command, code and configuration; and make"
                " collection depend on nothing that differs between processes."
            ),
        )


def collected_tests(plans: Mapping[str, Plan]) -> tuple[CollectedTest, ...]:
    """Return the collected tests, in the form to compare."""
    worlds = [plan.world for plan in plans.values()]
    return tuple((world.nodeid, world.size, world.backend) for world in worlds)


def first_difference(ours: Sequence[CollectedTest], theirs: Sequence[CollectedTest]) -> str | None:
    """Return one sentence on the first difference of two collections; None if they are equal.

    The order is ignored, because rank 0 decides which test is next.
    """
    here, there = ({each[0]: each for each in tests} for tests in (ours, theirs))
    for nodeid in [*here, *there]:
        if here.get(nodeid) != there.get(nodeid):
            says = f"{_describe(here.get(nodeid))} and there {_describe(there.get(nodeid))}"
            counts = f"{len(here)} multihost tests here, {len(there)} there"
            return printable(f"{nodeid}: here {says} ({counts}).")
    return None


def _describe(test: CollectedTest | None) -> str:
    if test is None:
        return "it was not collected"
    return f"ranks={test[1]}, backend={test[2]!r}"
