"""A clock that jumps: over waits that nothing but time can end (`clock="jump"`).

`page` is the shared memory through which the processes of a world have one clock, with the
preloaded library `clock.c`. `jumps` decides when the clock jumps, `open_ends` what could still end
a wait before a timer does, and `record` is what the report shows. `in_rank` lets a rank follow the
clock. `option` is the setting `clock`, `service` what the engine asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.option import Option
    from pytest_multihost.core.services import ServiceKind


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the clock."""
    from pytest_multihost.extensions.clock.service import CLOCK

    return [CLOCK]


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer the setting `clock` to tests."""
    from pytest_multihost.extensions.clock.option import CLOCK_OPTION

    return [CLOCK_OPTION]


@hookimpl
def pytest_multihost_run_options() -> Sequence[Option[Any]]:
    """Offer the setting `clock` to ``multihost run``."""
    from pytest_multihost.extensions.clock.option import CLOCK_OPTION

    return [CLOCK_OPTION]
