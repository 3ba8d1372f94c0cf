"""What this interpreter was started for, if it works for a controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_multihost.backends.backend import Backend
    from pytest_multihost.launch.wire.framing import Channel
    from pytest_multihost.model.spec import RankSpec


@dataclass(slots=True)
class Errand:
    """What this interpreter was started for.

    Attributes:
        files: What it is to collect.
        order: All of what the controller has said.
        place: For a rank, its place in the world and its channel.
        backend: For a rank, its backend once it has been started.
        problems: What went wrong in collecting.
    """

    files: Sequence[str]
    order: Mapping[str, Any]
    place: tuple[RankSpec, Channel] | None = None
    backend: Backend | None = None
    problems: list[str] = field(default_factory=list)


_taken_on: list[Errand] = []


def take_on(task: Errand) -> None:
    """Make `task` what this interpreter is for. It has one for its whole life."""
    _taken_on[:] = [task]


def errand() -> Errand | None:
    """Return what this interpreter was started for, None in a controller."""
    return _taken_on[0] if _taken_on else None
