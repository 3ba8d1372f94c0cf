"""Declares the hook with which other plugins offer hazard rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_multihost.extensions.hazards.rule import HazardRule


@hookspec
def pytest_multihost_hazard_rules() -> Sequence[HazardRule]:  # type: ignore[empty-body]
    """Return hazard rules.

    Called in pytest's own process: after each attempt that passed, and, if the user names rules,
    once the list of tests is final. If two rules have the same name, the plugin registered last
    wins. Implement it with ``hookimpl(optionalhook=True)``, because hazards may be switched off.
    """
