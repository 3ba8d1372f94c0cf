"""The kind of hosts "netns": made from Linux namespaces, with their own network.

Every run of pytest imports this module, so it imports the rest only for a world with such hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_multihost.core.host_kind import HostKind

if TYPE_CHECKING:
    from pytest_multihost.core.model.spec import Host, ServicePart

NAME = "netns"
"""The name of the kind of hosts, and of the service that makes them."""


def _hosts(size: int, ranks_each: int) -> tuple[Host, ...]:
    from pytest_multihost.extensions.netns.hosts import hosts_of

    return hosts_of(size, ranks_each, NAME)


def _services() -> Mapping[str, ServicePart]:
    from pytest_multihost.core.model.spec import ServicePart

    return {NAME: ServicePart(server="pytest_multihost.extensions.netns.server_part:start")}


NETNS = HostKind(
    name=NAME,
    hosts=_hosts,
    services=_services,
    is_sealed=True,
    probe="pytest_multihost.extensions.netns.server_part:probe",
)
