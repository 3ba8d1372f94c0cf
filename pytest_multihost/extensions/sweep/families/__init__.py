"""Lists the families of disturbances, each one way to disturb a rank.

`family` defines a family. Each family is one module: `late`, `fails` and `differs`. `FAMILIES`
lists them.

Every run of pytest imports this module, because the options name the families. So the list has only
names and help texts; a family's module, which imports the planning, is loaded when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_multihost.extensions.sweep.families.family import SweepFamily

__all__ = ["DEFAULT", "DEFAULT_FAMILIES", "FAMILIES", "REMOVED", "FamilyEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyEntry:
    """The name and help text of a family, and a function that loads it.

    Attributes:
        name: The value for `--multihost-sweep`.
        help: The disturbance, in a few words.
        is_default: Whether a sweep uses the family if the user names no families.
        load: Returns the family. Called only if a test is swept, or a sweep is reported.
    """

    name: str
    help: str
    is_default: bool = False
    load: Callable[[], SweepFamily]


@cache
def _load(name: str) -> SweepFamily:
    """Return the family of the module with this name in this folder."""
    family: SweepFamily = import_module(f"{__name__}.{name}").FAMILY
    return family


def _entry(name: str, text: str, *, is_default: bool = False) -> FamilyEntry:
    return FamilyEntry(name=name, help=text, is_default=is_default, load=partial(_load, name))


FAMILIES: Mapping[str, FamilyEntry] = {
    entry.name: entry
    for entry in (
        _entry("late", "the rank is held until all others wait", is_default=True),
        _entry("fails", "a call on a file fails", is_default=True),
        _entry("differs", "the rank sees other data than the others", is_default=True),
    )
}
"""The families by name, in the order of planning."""

REMOVED: Mapping[str, str] = {
    "errors": "Name the fault in the test's marker: faults=[faults.fails(rank=1, at=...)].",
    "killed": "Name the fault in the test's marker: faults=[faults.kill(rank=1, at=...)].",
    "hazards": "--multihost-hazards=fail finds hazards without a sweep.",
}
"""The replacements of families of earlier versions."""

DEFAULT = "default"
"""The value for `--multihost-sweep` that names no family: the default ones, without rare kinds."""

DEFAULT_FAMILIES = tuple(name for name, entry in FAMILIES.items() if entry.is_default)
