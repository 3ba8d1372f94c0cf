"""The hosts of a world: what they are made from, what they are called, who lives on which."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from pytest_multihost.model.errors import SettingError

ONE = "one"
"""All ranks on this machine, as it is."""

NETWORK = ipaddress.ip_network("10.77.0.0/16")
"""Addresses of hosts that are namespaces; nothing outside of their world can reach these."""

BRIDGE_ADDRESS = str(NETWORK[-2])
"""The address of the bridge that they are plugged into."""

NETNS = "netns"
"""Each host is made from Linux namespaces."""

DOCKER = "docker"
"""Each host is a container."""

_FORM = re.compile(r"(?P<kind>one|netns|docker)(:(?P<each>[1-9][0-9]*))?")
_CHOICES = "one, netns, netns:N (N ranks on each host), docker, docker:N"


@dataclass(frozen=True, slots=True)
class Host:
    """A machine, or what stands for one.

    Attributes:
        index: 0 for the host of the primary.
        name: As `gethostname` has it on hosts that are made; "localhost" stands for this machine.
        address: Where the others reach it.
        interface: The network interface with that address.
        ranks: Who lives on it.
    """

    index: int
    name: str
    address: str
    interface: str
    ranks: range


def parse_hosts(text: object) -> str:
    """Return a wish for hosts in its one way of writing it: "one", "netns", "netns:2".

    Raises:
        SettingError: It is none, or one that cannot be met.
    """
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None or (found["kind"] == ONE and found["each"]):
        raise SettingError(f"must be one of {_CHOICES}, not {text!r}")
    return found["kind"] if found["each"] in (None, "1") else found[0]


def kind_of(hosts: str) -> str:
    """Return what hosts are made from: "one", "netns" or "docker"."""
    return hosts.partition(":")[0]


def host_count(hosts: str, size: int) -> int:
    """Return how many hosts a world of `size` ranks has; the last may have fewer ranks."""
    return 1 if hosts == ONE else -(-size // _ranks_each(hosts))


def host_of(hosts: str, size: int, rank: int) -> Host:
    """Return the host of a rank.

    Args:
        hosts: As `parse_hosts` returns it.
        size: Ranks of the world.
        rank: Which of them.
    """
    if hosts == ONE:
        return Host(0, "localhost", "127.0.0.1", "lo", range(size))
    each = _ranks_each(hosts)
    index = rank // each
    ranks = range(index * each, min(size, (index + 1) * each))
    name = f"host-{index}"
    # An engine gives out addresses as it likes, and tells containers each other's by name.
    address = name if kind_of(hosts) == DOCKER else str(NETWORK[index + 1])
    return Host(index, name, address, "eth0", ranks)


def all_hosts(hosts: str, size: int) -> tuple[Host, ...]:
    """Return the hosts of a world in order."""
    each = _ranks_each(hosts) if hosts != ONE else size
    return tuple(host_of(hosts, size, index * each) for index in range(host_count(hosts, size)))


def _ranks_each(hosts: str) -> int:
    return int(hosts.partition(":")[2] or 1)
