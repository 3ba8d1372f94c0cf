"""Start recording in a rank."""

from __future__ import annotations

from pytest_multihost.model.spec import RankSpec
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.watch.slots import SlotPage, slots_path

_recorders: list[Recorder] = []


def start_recording(spec: RankSpec) -> None:
    """Make this rank's slot page, and record from now on what it does with other ranks."""
    page = SlotPage.create(slots_path(spec.scratch, spec.rank))
    _recorders[:] = [Recorder(page, spec.rank, spec.world.size)]


def the_recorder() -> Recorder:
    """Return the recorder of this rank."""
    return _recorders[0]
