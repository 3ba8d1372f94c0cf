"""What a world is to be: decided in the controller, the same for every rank."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.model.fault import Fault
from pytest_multihost.model.hosts import ONE, Host, all_hosts, host_of

Site = tuple[str, str, str, int]
"""A host's name, its address, the network interface with that address, and its number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """One attempt of one test.

    Attributes:
        nodeid: pytest's node id; never carries a rank.
        attempt: 1 for the first run of this test in this session, 2 for its first rerun, ...
        size: Number of ranks.
        backend: Name of the backend that forms the process group.
        local_devices: Devices per rank, for backends that make their own (jax).
        timeout_s: Seconds from the moment all ranks are ready to the end of the world.
        startup_timeout_s: Seconds from the first fork until all ranks are ready.
        seed: Decides everything that is drawn at random on behalf of this world.
        faults: What is to happen to its ranks; their ranks are numbers.
        tells_points: Whether each rank tells of every point that a fault could be bound to.
        hosts: What its hosts are made from, and how many ranks live on each; see `model.hosts`.
        sites: The hosts that were there before us, where processes on several have been attached;
            none where the hosts are ours to make.
    """

    nodeid: str
    attempt: int
    size: int
    backend: str
    local_devices: int
    timeout_s: float
    startup_timeout_s: float
    seed: int
    faults: tuple[Fault, ...] = ()
    tells_points: bool = False
    hosts: str = ONE
    sites: tuple[Site, ...] = ()

    @property
    def all_hosts(self) -> tuple[Host, ...]:
        """Its hosts in order."""
        return hosts_at(self.sites) or all_hosts(self.hosts, self.size)

    def host_of(self, rank: int) -> Host:
        """Return the host that a rank lives on."""
        if self.sites:
            return next(host for host in self.all_hosts if rank in host.ranks)
        return host_of(self.hosts, self.size, rank)


def hosts_at(sites: tuple[Site, ...]) -> tuple[Host, ...]:
    """Return the hosts at sites in order; ranks are counted through."""
    hosts: list[Host] = []
    for index, (name, address, interface, count) in enumerate(sites):
        first = hosts[-1].ranks.stop if hosts else 0
        hosts.append(Host(index, name, address, interface, range(first, first + count)))
    return tuple(hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """One rank's place in a world.

    Attributes:
        world: The world it belongs to.
        rank: Its index, 0..size-1.
        directory: Artifacts of this attempt: logs and stacks go here.
        scratch: Private directory of this world outside the artifacts: rendezvous files,
            temporary directories of the tests.
        ports: Two TCP ports of the primary's host that are held for this world: one for whoever
            uses MASTER_PORT, one for the backend's own service.
    """

    world: WorldSpec
    rank: int
    directory: str
    scratch: str
    ports: tuple[int, int]

    @property
    def is_primary(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def host(self) -> Host:
        """The host it lives on."""
        return self.world.host_of(self.rank)
