"""The hook of hazards, for other plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_multihost.extensions.hazards.rule import HazardRule


@hookspec
def pytest_multihost_hazard_rules() -> Sequence[HazardRule]:  # type: ignore[empty-body]
    """Return rules to look for hazards by.

    Called in pytest's own process, once the list of tests is final if rules are asked for by name,
    and after each attempt that has passed. If two have the same name, the plugin registered last
    wins. Implement it with ``hookimpl(optionalhook=True)``: hazards may be switched off.
    """
