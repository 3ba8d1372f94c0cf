"""What is built in, offered through the same hooks as extensions and third parties use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.launch import Launcher
    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.nemesis import FaultKind
    from pytest_multihost.core.option import Option
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


@hookimpl(tryfirst=True)  # first in the help
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer the core's options."""
    from pytest_multihost.core.pytest_plugin.options import CORE_OPTIONS

    return CORE_OPTIONS


@hookimpl(trylast=True)
def pytest_multihost_prepare(spec: WorldSpec) -> WorldSpec:
    """Return the spec that extensions change."""
    return spec


@hookimpl(trylast=True)
def pytest_multihost_launch(launcher: Launcher) -> Launcher:
    """Return the launcher that extensions change."""
    return launcher


@hookimpl(trylast=True)
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer what lets held ranks go on, and what ends scripts."""
    from pytest_multihost.core.services import BUILT_IN_SERVICES

    return BUILT_IN_SERVICES
