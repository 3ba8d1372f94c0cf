"""The service "simulated" of a world: it reads whether the exchange has proven a hang."""

from __future__ import annotations

from pytest_multihost.core.model.spec import ServicePart
from pytest_multihost.core.services import Opening, Service, ServiceKind
from pytest_multihost.extensions.simulated.standing import read_standing

NAME = "simulated"

_INTERVAL_S = 0.05

PART = ServicePart(
    server="pytest_multihost.extensions.simulated.server_part:start",
    rank="pytest_multihost.extensions.simulated.in_rank:join",
    one_machine=("backend='simulated'", "backend='gloo'"),
)


def _open(opening: Opening) -> Service:
    folder, watchdog = opening.scratch, opening.watchdog

    def has_proof(deadline_s: float) -> bool:
        standing = read_standing(folder)
        return standing.is_still and standing.until_s >= deadline_s and watchdog.early == "fail"

    def permits_proof(deadline_s: float) -> bool:
        standing = read_standing(folder)
        return standing.is_idle and standing.until_s >= deadline_s

    return Service(
        name=NAME,
        interval_s=lambda: _INTERVAL_S,
        has_proof=has_proof,
        permits_proof=permits_proof,
    )


SIMULATED_SERVICE = ServiceKind(name=NAME, open=_open, part=PART)
