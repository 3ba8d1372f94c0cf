"""What takes part in a world while it runs, beside its ranks.

`service` says what a service is, and what it can do. Built in are `held_ranks`, which lets ranks go
on that a fault holds, and `script_end`, which lets ranks of a script leave ahead of others.
"""

from pytest_multihost.core.services.held_ranks import HELD_RANKS
from pytest_multihost.core.services.script_end import SCRIPT_END
from pytest_multihost.core.services.service import (
    Action,
    Opening,
    Preload,
    Service,
    ServiceKind,
    Turn,
    asked_for,
    open_services,
)

BUILT_IN_SERVICES = (HELD_RANKS, SCRIPT_END)

__all__ = [
    "BUILT_IN_SERVICES",
    "Action",
    "Opening",
    "Preload",
    "Service",
    "ServiceKind",
    "Turn",
    "asked_for",
    "open_services",
]
