"""Worlds of up to thousands of ranks on one machine, with true values (`backend="simulated"`).

Every rank is a forked process. Its process groups send each operation to one exchange, which
matches the operations, computes the results, and lets a few ranks run at a time. If no rank can go
on, the exchange knows it at once.

* `launches` are the values that ranks and exchange send each other.
* `exchange` matches operations, `results` computes what they return, `key_values` keeps stores:
  all without I/O. `waits` knows which ranks run, and whether the world hangs.
* `process` is the process of the exchange; `server_part` starts it; `standing` is the file by
  which it tells the controller of a hang, and `service` reads that.
* `link` connects a rank; `group`, `works`, `store` and `tensors` are what torch sees of it;
  `install` puts them in the place of torch's own; `in_rank` is the rest of a rank's part.
* `backend` is the backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.services import ServiceKind


@hookimpl
def pytest_multihost_backends() -> Sequence[Backend]:
    """Offer the backend."""
    from pytest_multihost.extensions.simulated.backend import SIMULATED

    return [SIMULATED]


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the service that its worlds have."""
    from pytest_multihost.extensions.simulated.service import SIMULATED_SERVICE

    return [SIMULATED_SERVICE]
