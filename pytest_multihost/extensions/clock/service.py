"""The service "clock" of a world: its clock jumps."""

from __future__ import annotations

from pytest_multihost.core.model.spec import ServicePart
from pytest_multihost.core.services import Opening, Preload, Service, ServiceKind
from pytest_multihost.core.watch.kernel import TimeSource
from pytest_multihost.extensions.clock.jumps import PROOF_S, ClockJumps
from pytest_multihost.extensions.clock.page import (
    LIBRARY,
    THREAD_NAME,
    ClockPage,
    clock_page_path,
)

NAME = "clock"
_SETTING, _INSTEAD = "clock='jump'", "clock='real'"


def _open(opening: Opening) -> Service:
    page = ClockPage.create(clock_page_path(opening.scratch))
    watchdog = opening.watchdog
    proof_s = 0.0 if watchdog.early == "off" else PROOF_S
    jumps = ClockJumps(page, watchdog.observer, proof_s)
    return Service(
        name=NAME,
        interval_s=lambda: jumps.interval_s,
        on_event=jumps.in_world_time,
        on_request=jumps.on_request,
        due=jumps.due,
        record=jumps.service_record,
        time=TimeSource(
            now=page.now,
            ends=lambda: {each.tid: each.due_s for each in page.waits()},
            threads=frozenset({THREAD_NAME}),
        ),
        close=page.close,
    )


CLOCK = ServiceKind(
    name=NAME,
    open=_open,
    part=ServicePart(
        rank="pytest_multihost.extensions.clock.in_rank:join",
        keeps_timeouts=True,
        one_machine=(_SETTING, _INSTEAD),
        is_replayed=True,
    ),
    asked_by=(NAME, "jump"),
    preload=Preload(library=LIBRARY, setting=_SETTING, instead=_INSTEAD),
)
