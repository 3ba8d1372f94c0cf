"""Families of disturbances: what a sweep does to a rank at a point."""

from __future__ import annotations

from typing import Final, Literal, get_args

Family = Literal[
    "late",  # the rank is held there until all others wait for it
    "fails",  # the call fails: a file cannot be read, a disk is full
    "differs",  # the rank sees other data than the others do
    "errors",  # an operation of the runtime raises; only on request
    "killed",  # the process dies; only on request: launchers end the others
    "hazards",  # what the undisturbed run shows of hangs elsewhere is tried: docs/hazards.md
]
"""What a disturbance does."""

ALL_FAMILIES: Final[tuple[Family, ...]] = get_args(Family)

DEFAULT_FAMILIES: Final[tuple[Family, ...]] = ("late", "fails", "differs")
