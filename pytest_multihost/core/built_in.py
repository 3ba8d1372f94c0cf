"""The built-in backends and services, offered through the hooks that extensions use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.services.service import ServiceKind


@hookimpl(trylast=True)
def pytest_multihost_backends() -> Sequence[Backend]:
    """Offer the built-in backends."""
    from pytest_multihost.core.backends import BUILT_IN_BACKENDS

    return BUILT_IN_BACKENDS


@hookimpl(trylast=True)
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the service `role_order`."""
    from pytest_multihost.core.services import BUILT_IN_SERVICES

    return BUILT_IN_SERVICES
