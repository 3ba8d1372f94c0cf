"""The options of sweeps."""

from __future__ import annotations

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.option import Option
from pytest_multihost.core.pytest_plugin.option_texts import parse_seconds
from pytest_multihost.extensions.sweep.family import ALL_FAMILIES, DEFAULT_FAMILIES, Family


def parse_families(text: str) -> tuple[Family, ...]:
    """Read "late,fails".

    Raises:
        SettingError: There is no such family.
    """
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    found = tuple(each for each in ALL_FAMILIES if each in parts)
    if len(found) < len(parts):
        raise SettingError(
            f"families of disturbances are {', '.join(ALL_FAMILIES)}, not {shown(text)}",
            remedy=f"Say --multihost-sweep={','.join(DEFAULT_FAMILIES)}; the names of files go"
            " before an option that stands without a value.",
        )
    return found


FAMILIES: Option[tuple[Family, ...]] = Option(
    name="sweep",
    metavar="FAMILIES",
    help="Disturb passing tests in turn; of: late,fails,differs,errors,killed",
    parse=parse_families,
    default=(),
    bare=",".join(DEFAULT_FAMILIES),
)
"""Sweep every multihost test with these; empty: only tests with the marker."""

BUDGET: Option[float] = Option(
    name="sweep_budget",
    metavar="SECONDS",
    help="How long each test is swept (default: 60)",
    parse=parse_seconds,
    default=60.0,
)

CONTINUE = "multihost_sweep_continue"
"""The switch --multihost-sweep-continue."""
