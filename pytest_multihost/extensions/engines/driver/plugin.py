"""The plugin of a run whose ranks an engine's nodes start: pytest's process has none.

The nodes are asked for when pytest is configured, so that they start while the tests are collected.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from pytest_multihost.core.backends import named_backend
from pytest_multihost.core.launch.ending_signals import interrupt_on_signals
from pytest_multihost.core.launch.launcher_env import Membership
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.model.errors import (
    LaunchError,
    MultihostError,
    SettingError,
    known_names,
    shown,
)
from pytest_multihost.core.model.json_values import JsonObject
from pytest_multihost.core.model.messages import Answered, Ask
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.option import STARTUP_TIMEOUT, Settings
from pytest_multihost.core.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.core.pytest_plugin.tally import TALLY
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.core.pytest_private import base_temp
from pytest_multihost.extensions.engines.attach import (
    Peer,
    PeersLauncher,
    detect_local_peers,
    hosts_of,
    require_one_machine,
)
from pytest_multihost.extensions.engines.attach.admission import Admission
from pytest_multihost.extensions.engines.attach.peer import PING_S
from pytest_multihost.extensions.engines.attach.world import in_order, shares_of
from pytest_multihost.extensions.engines.driver import heartbeats
from pytest_multihost.extensions.engines.driver.carrier import Carrier
from pytest_multihost.extensions.engines.driver.carrying_sockets import (
    acknowledge,
    tcp_sockets_of,
)
from pytest_multihost.extensions.engines.driver.lingering import LINGERING, PART
from pytest_multihost.extensions.engines.driver.nodes import (
    await_end_of,
    await_nodes,
    await_peers,
    send_orders,
)
from pytest_multihost.extensions.engines.driver.options import NODES, ON, PYTHON, QUEUE_TIMEOUT
from pytest_multihost.extensions.engines.driver.orders_of_run import orders_of_run
from pytest_multihost.extensions.engines.driver.start_peer import CODE
from pytest_multihost.extensions.engines.driver.versions import (
    relevant_versions,
    version_conflict,
)
from pytest_multihost.extensions.engines.engine import Engine, Fleet, Node, StartRequest
from pytest_multihost.extensions.engines.peer_server import LACKING
from pytest_multihost.extensions.engines.pytest_plugin.controller import (
    collected_tests,
    refuse,
    require_same_tests,
)
from pytest_multihost.extensions.engines.pytest_plugin.peer_losses import PeerLosses

_QUEUE_IN_CI_S = 600.0


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class Driver:
    """The plugin in pytest's own process; once it has peers, they are its `OtherMachines`.

    Attributes:
        peers: The peers by rank, from 1; none before `take_part`.
    """

    config: pytest.Config
    settings: Settings
    engine: Engine
    fleet: Fleet
    folder: Path
    peers: Mapping[int, Peer] = field(default_factory=dict)
    _admission: Admission | None = None
    _carrier: Carrier | None = None
    _sockets: list[socket.socket] = field(default_factory=list)

    @classmethod
    def start(cls, config: pytest.Config, engines: Sequence[Engine]) -> Driver:
        """Ask the engine that the settings name for nodes.

        Raises:
            SettingError: There is no such engine, or its text is wrong.
            LaunchError: It cannot start anything.
        """
        settings = config.stash[TALLY].settings
        name, _, text = (settings.get(ON) or "").partition(":")
        found = {each.name: each for each in engines}
        if name not in found:
            raise SettingError(
                f"--multihost-on: there is no engine {shown(name)}",
                seen=f"There are: {known_names(found, name)}",
            )
        request = StartRequest(
            python=settings.get(PYTHON),
            code=CODE,
            count=settings.get(NODES),
            folder=Path(tempfile.mkdtemp(prefix="nodes-", dir=base_temp(config))),
            settings=settings,
        )
        fleet = found[name].begin(text, request)
        driver = cls(config, settings, found[name], fleet, request.folder)
        try:
            if (nodes := fleet.nodes()) is not None:
                driver._admit(nodes)
        except LaunchError:
            driver.stop()
            raise
        return driver

    def _admit(self, nodes: Sequence[Node]) -> Admission:
        """Return the admission of the nodes' peers; send these their orders the first time."""
        if self._admission is None:
            secret, name = secrets.token_bytes(32), self.engine.name
            own = Membership(rank=0, size=len(nodes) + 1, source=name, job="")
            self._admission = Admission(own, secret)
            orders = orders_of_run(self.config, self.settings, name, secret.hex(), len(nodes))
            send_orders(nodes, orders)
            taken = [each.connection for each in nodes]
            self._carrier = Carrier.start(taken, heartbeats.BEAT_S)
            for rank, connection in enumerate(self._carrier.connections, 1):
                label = f"node {nodes[rank - 1].name}"
                self._admission.begin(connection, label, within_s=math.inf, rank=rank)
        return self._admission

    @property
    def launcher(self) -> PeersLauncher:
        """Starts worlds on the nodes, which have all ranks; see `OtherMachines`."""
        return PeersLauncher(self.engine.name, in_order(self.peers), root=str(self.config.rootpath))

    def prepare(self, spec: WorldSpec) -> WorldSpec:
        """Return a world's spec with its machines, and the services of its ranks there."""
        services = {**spec.services, LINGERING.name: PART} if self.engine.signals_ranks else None
        hosts = hosts_of(spec.size, in_order(self.peers))
        return replace(spec, hosts=hosts or spec.hosts, services=services or spec.services)

    def lacking(self, plan: Plan, spec: WorldSpec) -> str:
        """Return the part that a node lacks for its ranks of a world; empty if none.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        for peer, ranks in shares_of(spec.size, in_order(self.peers)):
            details: JsonObject = {"nodeid": plan.world.nodeid, "ranks": len(ranks)}
            answer, _ = peer.request(Ask(LACKING, details), Answered, within_s=PING_S)()
            if why := str(answer.answer.get(LACKING, "")):
                return f"{peer.label}: {why}"
        return ""

    def take_part(self, _: pytest.Session, chosen: Sequence[pytest.Item]) -> None:
        """Wait for the nodes, admit their peers, and check that these can run the tests.

        Raises:
            pytest.UsageError: There are no nodes, or a peer cannot take part.
        """
        if not chosen:
            self.stop()
            return
        interrupt_on_signals()
        try:
            self._meet(chosen)
        except MultihostError as error:
            self.stop()
            raise usage_error(str(error)) from error
        except KeyboardInterrupt:
            self.stop()
            raise

    def _meet(self, chosen: Sequence[pytest.Item]) -> None:
        plans = plan_items(self.config, chosen, self.settings, named_backend)
        refuse(self.config, plans, chosen, run="a run with --multihost-on")
        limit_s = self.settings.get(QUEUE_TIMEOUT)
        if limit_s is None and os.environ.get("CI"):
            limit_s = _QUEUE_IN_CI_S
        nodes = await_nodes(self.fleet, self.engine.name, limit_s, self._say)
        admission = self._admit(nodes)
        await_peers(nodes, admission, self.settings.get(STARTUP_TIMEOUT))
        peers = admission.peers
        for rank, peer in sorted(peers.items()):
            node = nodes[rank - 1]
            peer.why_lost = partial(self._why_lost, node, rank - 1)
            self._hasten(peer, node)
        _check_versions(peers)
        ours = {each[0]: each for each in collected_tests(plans)}  # may be fewer: --lf
        for peer in peers.values():
            theirs = [each for each in peer.hello.tests if each[0] in ours]
            require_same_tests([*ours.values()], peer, theirs)
        detect_local_peers(peers, base_temp(self.config))
        for peer in peers.values():  # one in a copy of the project may not see the artifacts
            peer.is_local = peer.is_local and peer.hello.root == str(self.config.rootpath)
        for plan in plans.values():
            require_one_machine(peers, plan.world)
        self.peers = peers
        losses = PeerLosses(peers)
        self.config.pluginmanager.register(losses, "multihost_peer_losses")
        names = ", ".join(each.name for each in nodes)
        self._say(f"multihost: {self.engine.name}: {len(nodes)} nodes: {names}")

    def _hasten(self, peer: Peer, node: Node) -> None:
        """Have data from a peer acknowledged at once."""
        if node.pid is not None and (sockets := tcp_sockets_of(node.pid)):
            for each in sockets:
                close_in_children(each)
            self._sockets += sockets
            peer.stream.heard = partial(acknowledge, sockets)

    def stop(self) -> None:
        """End everything that has been started; does nothing twice."""
        if self._admission is not None:
            self._admission.close()
        if self._carrier is not None:
            self._carrier.stop()
        for each in self._sockets:
            each.close()
        self.fleet.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _say(self, line: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.verbosity >= 0:
            reporter.write_line(line, flush=True)

    def _why_lost(self, node: Node, index: int) -> str:
        await_end_of(node)
        return self.fleet.why_lost(index)

    # Hooks

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Let the peers end, after all output is written; a node that fails then fails the run."""
        try:
            return (yield)
        finally:
            for peer in self.peers.values():
                peer.dismiss()
            self.stop()
            for each in self.fleet.failed() if session.exitstatus == pytest.ExitCode.OK else ():
                self._say(f"multihost: {each}, although all tests have passed")
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """End the started processes, if the session has not begun."""
        self.stop()


def _check_versions(peers: Mapping[int, Peer]) -> None:
    """Check that all processes have the same versions.

    Raises:
        LaunchError: They have not; the error has both versions.
    """
    named = [("pytest's own process", relevant_versions())]
    named += [(peer.name, peer.hello.versions) for peer in peers.values()]
    if conflict := version_conflict(named):
        raise LaunchError(
            "the processes of this run have different versions",
            seen=conflict,
            remedy="Install one version everywhere; --multihost-python names the nodes' Python.",
        )
