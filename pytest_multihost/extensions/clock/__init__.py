"""A clock that jumps over waits that only time can end (`clock="jump"`).

* `page` is the shared memory with which the processes of a world share one clock; the preloaded
  library `clock.c` uses it as well.
* `jumps` decides when the clock jumps. `open_ends` finds other events that could end a wait.
* `record` is the summary for the verdict and the pages.
* `in_rank` makes a rank follow the clock.
* `service` is the service of a world, and `option` the setting `clock`.
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
