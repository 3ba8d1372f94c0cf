"""What a backend is. Third parties offer theirs through `pytest_multihost_backends`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_multihost.model.spec import RankSpec


def _nothing() -> None:
    """Do nothing."""


def _lacks_nothing(_: int) -> str | None:
    return None


def _no_devices() -> Sequence[object]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """How the ranks of a world form a process group.

    Attributes:
        name: What users write: ``backend="gloo"``.
        start: Runs in each rank and returns when the group is up. Everything heavy is imported
            in it.
        package: Import name of the package it needs, or None.
        extra: The extra of this distribution that installs the package.
        preload: Runs once in the server, before any rank is forked: imports what every rank
            needs. Must leave the process with a single thread.
        devices: Returns the rank's own devices once it has started.
        lacking: Returns why a world of that many ranks cannot run on this machine, or None.
        symptoms: Regular expressions, found in an exception's text, that say: this rank only
            lost, or waited in vain for, another. They must not match an error of its own making.
        fatal_symptoms: The same for a rank's log, where the runtime ends the process itself.
        primary_leaves_last: Whether rank 0 hosts a service whose end would end the others.
        offered_by: Who offers it; shown when an unknown backend is asked for.
    """

    name: str
    start: Callable[[RankSpec], None]
    package: str | None = None
    extra: str | None = None
    preload: Callable[[], None] = _nothing
    devices: Callable[[], Sequence[object]] = _no_devices
    lacking: Callable[[int], str | None] = _lacks_nothing
    symptoms: tuple[str, ...] = ()
    fatal_symptoms: tuple[str, ...] = ()
    primary_leaves_last: bool = False
    offered_by: str = "pytest-multihost-hangs"
