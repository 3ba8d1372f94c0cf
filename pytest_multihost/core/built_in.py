"""The built-in backends, faults and services, offered through the hooks that extensions use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.nemesis import FaultKind
    from pytest_multihost.core.services.service import ServiceKind


@hookimpl(trylast=True)
def pytest_multihost_backends() -> Sequence[Backend]:
    """Offer the built-in backends."""
    from pytest_multihost.core.backends import BUILT_IN_BACKENDS

    return BUILT_IN_BACKENDS


@hookimpl(trylast=True)
def pytest_multihost_faults() -> Sequence[FaultKind]:
    """Offer the built-in faults."""
    from pytest_multihost.core.nemesis import BUILT_IN_KINDS

    return BUILT_IN_KINDS


@hookimpl(trylast=True)
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the services `held_ranks` and `role_order`."""
    from pytest_multihost.core.services import BUILT_IN_SERVICES

    return BUILT_IN_SERVICES
