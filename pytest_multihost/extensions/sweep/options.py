"""Defines the options of sweeps."""

from __future__ import annotations

from typing import Final, Literal

from pytest_multihost.core.model.errors import SettingError, known_names, shown
from pytest_multihost.core.option import Option, one_of, parse_seconds
from pytest_multihost.extensions.sweep.families import (
    DEFAULT,
    DEFAULT_FAMILIES,
    FAMILIES,
    REMOVED,
)

_FAMILIES = "; ".join(f"{each.name}: {each.help}" for each in FAMILIES.values())


def parse_families(text: str) -> tuple[str, ...]:
    """Read "late,fails", or "default" alone, which stays as it is.

    Raises:
        SettingError: A family does not exist.
    """
    if text.strip() == DEFAULT:
        return (DEFAULT,)
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    found = tuple(each for each in FAMILIES if each in parts)
    if len(found) < len(parts):
        wrong = next(each for each in parts if each not in FAMILIES)
        raise SettingError(
            f"there is no fault class {shown(wrong)}",
            seen=f"There are: {known_names(FAMILIES, wrong)}",
            remedy=REMOVED.get(wrong)
            or f"The default is --multihost-sweep={','.join(DEFAULT_FAMILIES)}.",
        )
    return found


SWEEP: Option[tuple[str, ...]] = Option(
    name="sweep",
    metavar="CLASSES",
    help=f"Repeat passing tests, each time with one injected fault; fault classes: {_FAMILIES}",
    parse=parse_families,
    default=(),
    bare=DEFAULT,
)
"""Families for every multihost test; if empty, only tests with the marker are swept."""

BUDGET: Option[float] = Option(
    name="sweep_budget",
    metavar="SECONDS",
    help="How long each test is swept (default: 60)",
    parse=parse_seconds,
    default=60.0,
)

Show = Literal["lasting", "all"]
"""The weaknesses that reports show: lasting ones, or all."""

LASTING: Final[Show] = "lasting"
ALL: Final[Show] = "all"


SHOW: Option[Show] = Option(
    name="sweep_show",
    metavar="lasting|all",
    help="Weaknesses that are reported and fail the test: all, or without those in which a"
    " launcher ends all ranks within a minute (default: lasting)",
    parse=one_of(LASTING, ALL),
    default=LASTING,
)
