"""Worlds whose hosts are made from Linux namespaces, and the faults of the network between them.

`network` builds a world's hosts and holds them. `network_faults` performs faults in the netfault
daemon, with `relay` for what the kernel cannot do. `netlink` makes requests to the kernel, also
those for socket tables.
"""

from pytest_multihost.extensions.netns.netlink import (
    netlink_attributes,
    netlink_dump,
    open_sock_diag,
)
from pytest_multihost.extensions.netns.network import (
    HOSTS_FOLDER,
    HostNetwork,
    make_network,
    reserve_port,
)
from pytest_multihost.extensions.netns.network_faults import NetworkFaults

__all__ = [
    "HOSTS_FOLDER",
    "HostNetwork",
    "NetworkFaults",
    "make_network",
    "netlink_attributes",
    "netlink_dump",
    "open_sock_diag",
    "reserve_port",
]
