"""The service "simulated" of a world: it reads whether the exchange has proven a hang.

Each run with a multihost test imports this module, but few run a simulated world. So the code of
the exchange is imported when one starts.
"""

from __future__ import annotations

import time

from pytest_multihost.core.model.spec import ServicePart
from pytest_multihost.core.services import Opening, Service, ServiceKind

NAME = "simulated"

_INTERVAL_S = 0.05

_ANSWER_S = 1.0
"""How long the exchange may take to answer; on a busy machine it may have to wait for its turn."""

_QUIET_S = 2.2
"""How long the exchange and the ranks must have sent each other nothing for the kernel's view of
the ranks to prove a hang.

The snapshots of a proof are up to two seconds apart. A busy machine may need longer for them."""

PART = ServicePart(
    server="pytest_multihost.extensions.simulated.server_part:start",
    rank="pytest_multihost.extensions.simulated.in_rank:join",
    one_machine=("backend='simulated'", "backend='gloo'"),
)


def _open(opening: Opening) -> Service:
    from pytest_multihost.extensions.simulated.link import ask_exchange
    from pytest_multihost.extensions.simulated.server_part import exchange_address
    from pytest_multihost.extensions.simulated.standing import read_standing

    folder, watchdog = opening.scratch, opening.watchdog

    def has_proof(deadline_s: float) -> bool:
        standing = read_standing(folder)
        return standing.is_still and standing.until_s >= deadline_s and watchdog.early == "fail"

    def permits_proof(deadline_s: float) -> bool:
        found = ask_exchange(exchange_address(folder), _ANSWER_S)
        if found is None or not found.is_idle or found.until_s < deadline_s:
            return False
        return found.last_s <= min(watchdog.seen_since_s, time.monotonic() - _QUIET_S)

    return Service(
        name=NAME,
        interval_s=lambda: _INTERVAL_S,
        has_proof=has_proof,
        permits_proof=permits_proof,
    )


SIMULATED_SERVICE = ServiceKind(name=NAME, open=_open, part=PART)
