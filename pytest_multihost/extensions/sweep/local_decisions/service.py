"""The service that records the calls and reads of ranks in an undisturbed run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pytest_multihost.core.model.json_values import JsonError, from_json, parse_json
from pytest_multihost.core.model.spec import ServicePart, WorldSpec
from pytest_multihost.core.services import ServiceKind
from pytest_multihost.extensions.sweep.local_decisions.facts import (
    RECORD_NAME,
    RankRecords,
    SeenByRank,
)

NAME = "sweep-local-decisions"

WATCH = ServiceKind(
    name=NAME,
    open=lambda _opening: None,  # all of it is in the ranks
    part=ServicePart(rank="pytest_multihost.extensions.sweep.local_decisions.in_rank:join"),
)


def watching(spec: WorldSpec, root: Path) -> WorldSpec:
    """Return the spec of an undisturbed run whose ranks record their calls and reads.

    Args:
        root: Files below it are named relative to it.
    """
    part = replace(WATCH.part, settings={"root": str(root)})
    return replace(spec, services={**spec.services, NAME: part})


def unwatched(spec: WorldSpec) -> WorldSpec:
    """Return the spec of a disturbed run, from that of the undisturbed one."""
    services = {name: part for name, part in spec.services.items() if name != NAME}
    return replace(spec, services=services)


def read_records(folder: Path, ranks: Iterable[int]) -> RankRecords:
    """Return the records in a folder; a rank without a whole one has seen nothing."""
    found: dict[int, SeenByRank] = {}
    for rank in ranks:
        with contextlib.suppress(OSError, JsonError):
            text = (folder / f"{RECORD_NAME}-{rank}").read_text("utf-8")
            found[rank] = from_json(SeenByRank, parse_json(text))
    return found
