"""Worlds whose hosts are made from Linux namespaces, and the faults of the network between them.

`hosts` is the kind of hosts, `kinds` are the faults and `effects` what these do. `service` is what
the controller does while a world runs, `server_part` what the server does: `network` builds a
world's hosts and holds them, with the `links` between them; `network_faults` performs faults in the
netfault daemon, with `relay` for what the kernel cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.host_kind import HostKind
    from pytest_multihost.core.nemesis import FaultKind
    from pytest_multihost.core.services import ServiceKind


@hookimpl
def pytest_multihost_hosts() -> Sequence[HostKind]:
    """Offer hosts made from namespaces."""
    from pytest_multihost.extensions.netns.hosts import NETNS

    return [NETNS]


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the network between them."""
    from pytest_multihost.extensions.netns.service import NETWORK_SERVICE

    return [NETWORK_SERVICE]


@hookimpl
def pytest_multihost_faults() -> Sequence[FaultKind]:
    """Offer the faults of that."""
    from pytest_multihost.extensions.netns.kinds import NETWORK_FAULTS

    return NETWORK_FAULTS
