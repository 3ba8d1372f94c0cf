"""Worlds whose hosts are made from Linux namespaces, and the faults of the network between them.

* `kind_of_hosts` defines the kind of hosts, `hosts` its hosts, `kinds` the faults, and `effects`
  the effect of each fault.
* `service` is the controller's part while a world runs, `server_part` the server's.
* `network` builds and holds a world's hosts; `links` configures the links between them.
* `network_faults` performs faults in the netfault daemon; `relay` carries frames between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.host_kind import HostKind
    from pytest_multihost.core.services import ServiceKind
    from pytest_multihost.faults.kind import FaultKind


@hookimpl
def pytest_multihost_hosts() -> Sequence[HostKind]:
    """Offer hosts made from namespaces."""
    from pytest_multihost.extensions.netns.kind_of_hosts import NETNS

    return [NETNS]


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the network between these hosts."""
    from pytest_multihost.extensions.netns.service import NETWORK_SERVICE

    return [NETWORK_SERVICE]


@hookimpl
def pytest_multihost_faults() -> Sequence[FaultKind]:
    """Offer the faults of that network."""
    from pytest_multihost.extensions.netns.kinds import NETWORK_FAULTS

    return NETWORK_FAULTS
