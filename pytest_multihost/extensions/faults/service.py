"""The service of a world with faults: it has the server perform them, and releases held ranks.

The ranks perform most faults themselves, see `in_rank`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.core.model.event import Event, FaultChanged, Pause
from pytest_multihost.core.model.messages import FaultRequest, PauseRank, PerformFault
from pytest_multihost.core.model.spec import ServicePart, WorldSpec
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import Action, Opening, Preload, Service, ServiceKind, Turn
from pytest_multihost.extensions.faults.held_ranks import HeldRanks, release_action
from pytest_multihost.extensions.faults.io_shim import LIBRARY

NAME = "faults"
_HOME = "pytest_multihost.extensions.faults"


def faults_service(held: HeldRanks) -> Service:
    """Return the service."""

    def after(event: Event, _facts: Sequence[RankFacts]) -> Sequence[Action]:
        held.note(event)
        requests = _requests(event)
        return [Action(to_server=requests, is_certain=True)] if requests else ()

    def due(turn: Turn) -> Sequence[Action]:
        releases = held.due(turn.now, turn.facts, turn.horizon_s)
        return [release_action(held, each) for each in releases]

    return Service(
        name=NAME,
        interval_s=lambda: held.interval_s,
        after=after,
        due=due,
        is_acting=lambda _now: held.is_active,
    )


def _requests(event: Event) -> tuple[FaultRequest, ...]:
    """Return the requests to the server for parts of a fault that its rank cannot perform."""
    match event.body:
        case FaultChanged(pause=Pause() as pause):
            return (PauseRank(event.rank, pause),)
        case FaultChanged(resume=True):
            return (PauseRank(event.rank, None),)
        case FaultChanged(phase="begun", service=name, index=index, at=at) if name:
            # A fault at the rendezvous was performed before there was a rank.
            is_performed = at.point == "rendezvous"
            return () if is_performed else (PerformFault(name, event.rank, index),)
    return ()


def _open(opening: Opening) -> Service:
    return faults_service(HeldRanks(opening.watchdog.observer))


def _has_faults(spec: WorldSpec) -> bool:
    return bool(spec.faults) or spec.tells_points


FAULTS = ServiceKind(
    name=NAME,
    open=_open,
    part=ServicePart(rank=f"{_HOME}.in_rank:join", machine=f"{_HOME}.clean_up:join_machine"),
    needed_by=_has_faults,
)


def _needs_shim(spec: WorldSpec) -> bool:
    return any(each.needs_shim for each in spec.fault_facts.values())


IO_SHIM = ServiceKind(
    name="io_shim",
    open=lambda _opening: None,
    preload=Preload(library=LIBRARY, setting="slow_io", is_optional=True),
    needed_by=_needs_shim,
)
"""Only preloads a library into the ranks: it makes files slow for C libraries."""
