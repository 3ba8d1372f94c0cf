"""The services by which a world asks for the rules of NCCL."""

from __future__ import annotations

from functools import partial

from pytest_multihost.core.model.spec import ServicePart
from pytest_multihost.core.services import Opening, Service, ServiceKind
from pytest_multihost.extensions.simulated.option import SEMANTICS_OPTION
from pytest_multihost.extensions.simulated.semantics import GLOO, SEMANTICS


def _open(name: str, _opening: Opening) -> Service:
    """Return a service that does nothing: the world's spec names it."""
    return Service(name=name)


SEMANTICS_SERVICES = [
    ServiceKind(
        name=each.service,
        open=partial(_open, each.service),
        part=ServicePart(is_replayed=True),
        asked_by=(SEMANTICS_OPTION.name, each.name),
    )
    for each in SEMANTICS
    if each != GLOO
]
