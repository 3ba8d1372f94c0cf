"""Starts worlds on the nodes of an engine: all ranks are the peers', none is the driver's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_multihost.core.launch.composite_world import CompositeWorld
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.json_values import JsonObject
from pytest_multihost.core.model.messages import Answered, Ask
from pytest_multihost.core.model.spec import Host, WorldSpec
from pytest_multihost.core.pytest_plugin.plan import Plan
from pytest_multihost.extensions.engines.attach import Peer
from pytest_multihost.extensions.engines.attach.peer import PING_S
from pytest_multihost.extensions.engines.attach.world import (
    PeersRanks,
    PeerWorld,
    assign_ranks,
    hosts_of_places,
)
from pytest_multihost.extensions.engines.driver.lingering import LINGERING, PART
from pytest_multihost.extensions.engines.engine import Engine
from pytest_multihost.extensions.engines.peer_server import LACKING

Peers = Mapping[int, Peer]
"""The peers by rank, from 1."""


def shares_of(size: int, peers: Peers) -> list[tuple[Peer, list[int]]]:
    """Return the ranks of a world that each peer starts; a small world uses the first peers."""
    inside = [peers[rank] for rank in sorted(peers)]
    return [(inside[index], ranks) for index, ranks in assign_ranks(size, len(inside)).items()]


def hosts_of(size: int, peers: Peers) -> tuple[Host, ...]:
    """Return the machines of a world as hosts; empty if all are this one."""
    shares = shares_of(size, peers)
    if all(peer.is_local for peer, _ in shares):
        return ()
    return hosts_of_places((peer.its_address, ranks) for peer, ranks in shares)


@dataclass(frozen=True, slots=True)
class NodesLauncher:
    """Starts worlds through the peers."""

    engine: Engine
    peers: Peers
    root: str

    @property
    def name(self) -> str:
        """The engine's name, for the verdict."""
        return self.engine.name

    def prepare(self, spec: WorldSpec) -> WorldSpec:
        """Return a world's spec with its machines, and the services of its ranks there."""
        services = {**spec.services, LINGERING.name: PART} if self.engine.signals_ranks else None
        hosts = hosts_of(spec.size, self.peers)
        return replace(spec, hosts=hosts or spec.hosts, services=services or spec.services)

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> CompositeWorld:
        """Start the ranks of a world, the primary first, because its peer holds the ports.

        Raises:
            LaunchError: The ranks could not be started; none is left.
        """
        shares = shares_of(spec.size, self.peers)
        for peer, _ in shares:
            peer.measure_clock()
        parts = [PeerWorld(peer, ranks, directory, self.root) for peer, ranks in shares]
        far = [part for part in parts if not part.peer.is_local]
        world = CompositeWorld(parts, PeersRanks(far, scratch, spec.names) if far else None)
        try:
            first, _ = parts[0].begin_fork(spec, None, scratch)()
            waits = [part.begin_fork(spec, first.ports, scratch) for part in parts[1:]]
            for wait in waits:
                wait()
        except LaunchError:
            world.end(grace_s=0.0)
            raise
        return world


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a run; see `OtherMachines`."""

    launcher: NodesLauncher

    def lacking(self, plan: Plan, spec: WorldSpec) -> str:
        """Return the part that a node lacks for its ranks of a world; empty if none.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        for peer, ranks in shares_of(spec.size, self.launcher.peers):
            details: JsonObject = {"nodeid": plan.world.nodeid, "ranks": len(ranks)}
            answer, _ = peer.request(Ask(LACKING, details), Answered, within_s=PING_S)()
            if why := str(answer.answer.get(LACKING, "")):
                return f"{peer.label}: {why}"
        return ""


def local_pids(peers: Peers) -> Sequence[int]:
    """Return the process ids of peers on this machine."""
    return [each.hello.pid for each in peers.values() if each.is_local and each.hello.pid]
