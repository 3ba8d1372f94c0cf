"""Worlds whose hosts are made from Linux namespaces, and the faults of the network between them.

`network` holds a world's hosts, which `build` builds; `network_faults` performs faults through
the netfault daemon. `netlink` makes requests to the kernel, also those for socket tables.

`netfault_daemon` performs network faults, with `relay` for what the kernel cannot do.
"""

from pytest_multihost.launch.netns.build import reserve_port
from pytest_multihost.launch.netns.netlink import (
    netlink_attributes,
    netlink_dump,
    open_sock_diag,
)
from pytest_multihost.launch.netns.network import HOSTS_FOLDER, HostNetwork, make_network
from pytest_multihost.launch.netns.network_faults import NetworkFaults

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
