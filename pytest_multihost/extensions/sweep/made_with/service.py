"""The service that records the code of the ranks of a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.model.spec import ServicePart, WorldSpec
from pytest_multihost.core.services import ServiceKind
from pytest_multihost.extensions.sweep.made_with.in_rank import RECORD_NAME

NAME = "sweep-code"

RECORDER = ServiceKind(
    name=NAME,
    open=lambda _opening: None,  # all of it is in the ranks
    part=ServicePart(rank="pytest_multihost.extensions.sweep.made_with.in_rank:join"),
)


def recording(spec: WorldSpec) -> WorldSpec:
    """Return the spec of an undisturbed run, whose ranks record their code."""
    return replace(spec, services={**spec.services, NAME: RECORDER.part})


def recording_into(spec: WorldSpec, folder: Path) -> WorldSpec:
    """Return the spec of a disturbed run, whose ranks record code that is not yet known.

    Args:
        spec: The spec of the undisturbed run.
        folder: Has the known code, which `write_known` writes.
    """
    settings = {"record": str(folder / RECORD_NAME), "known": str(folder / "known")}
    part = replace(RECORDER.part, settings=settings)
    return replace(spec, services={**spec.services, NAME: part})


def write_known(folder: Path, used: frozenset[str]) -> None:
    """Write the code that the undisturbed run has recorded, for the disturbed ones."""
    text = "".join(f"{each}\n" for each in sorted(used))
    files.write(folder / "known", text.encode("utf-8", "surrogateescape"))


def read_record(folder: Path) -> frozenset[str]:
    """Return the paths that ranks have recorded in a folder; empty if there are none."""
    try:
        text = (folder / RECORD_NAME).read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return frozenset()
    return frozenset(text.splitlines())
