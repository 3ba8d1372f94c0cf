"""Services: participants of a running world that are not ranks.

`service` defines the type of a service and its actions, `machine_part` its part on each machine.
One is built in: `role_order` starts roles after others.
"""

from pytest_multihost.core.services.machine_part import MachinePart, machine_parts
from pytest_multihost.core.services.role_order import ROLE_ORDER, order_part
from pytest_multihost.core.services.service import (
    Action,
    Opening,
    Preload,
    Service,
    ServiceKind,
    Turn,
    asked_for,
    open_services,
    preloads_of,
    services_of_world,
    with_needed,
)

BUILT_IN_SERVICES = (ROLE_ORDER,)

__all__ = [
    "BUILT_IN_SERVICES",
    "Action",
    "MachinePart",
    "Opening",
    "Preload",
    "Service",
    "ServiceKind",
    "Turn",
    "asked_for",
    "machine_parts",
    "open_services",
    "order_part",
    "preloads_of",
    "services_of_world",
    "with_needed",
]
