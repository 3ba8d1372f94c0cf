"""Services: participants of a running world that are not ranks.

`service` defines what a service is and can do. Three are built in: `held_ranks` releases ranks that
a fault holds, `role_order` starts roles after others, and `debugger` lends the terminal to one rank
at a time.
"""

from pytest_multihost.core.services.debugger import debugger_service
from pytest_multihost.core.services.held_ranks import HELD_RANKS
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
    services_of_world,
)

BUILT_IN_SERVICES = (HELD_RANKS, ROLE_ORDER)

__all__ = [
    "BUILT_IN_SERVICES",
    "Action",
    "Opening",
    "Preload",
    "Service",
    "ServiceKind",
    "Turn",
    "asked_for",
    "debugger_service",
    "open_services",
    "order_part",
    "services_of_world",
]
