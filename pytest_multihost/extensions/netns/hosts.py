"""The hosts of a world that are made from Linux namespaces, and their network."""

from __future__ import annotations

import ipaddress
from functools import cache

from pytest_multihost.core.model.spec import Host

NETWORK = ipaddress.ip_network("10.77.0.0/16")
"""The addresses of these hosts; unreachable from outside their world."""

BRIDGE_ADDRESS = str(NETWORK[-2])
"""The address of the bridge that connects the hosts."""


@cache
def hosts_of(size: int, ranks_each: int, kind: str) -> tuple[Host, ...]:
    """Return the hosts of a world of `size` ranks, in order; the last one may have fewer ranks."""
    found: list[Host] = []
    for first in range(0, size, ranks_each):
        index = len(found)
        ranks = range(first, min(size, first + ranks_each))
        address = str(NETWORK[index + 1])
        host = Host(index, f"host-{index}", address, "eth0", ranks, kind, is_sealed=True)
        found.append(host)
    return tuple(found)
