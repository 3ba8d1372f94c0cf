"""Hosts that differ in their loopback address: no rights are needed to make them."""

from pytest_multihost.hookspecs import Host, HostKind


def hosts_of(size, ranks_each):
    """Return the hosts of a world: 127.0.1.1, 127.0.1.2, ..."""
    firsts = range(0, size, ranks_each)
    return tuple(
        Host(
            index=index,
            name=f"loopback-{index}",
            address=f"127.0.1.{index + 1}",
            interface="lo",
            ranks=range(first, min(size, first + ranks_each)),
        )
        for index, first in enumerate(firsts)
    )


LOOPBACK = HostKind(name="loopback", hosts=hosts_of)
