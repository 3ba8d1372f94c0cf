"""Collects the rules of all plugins, and selects the rules to apply."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pytest_multihost.extensions.hazards.rule import HazardRule

if TYPE_CHECKING:
    import pluggy

ALL = "all"
"""Selects every rule."""


def offered_rules(hook: pluggy.HookRelay) -> Mapping[str, HazardRule]:
    """Return the rules of all plugins by name; the plugin registered last wins."""
    groups = reversed(hook.pytest_multihost_hazard_rules())  # pluggy lists the last one first
    return {rule.name: rule for group in groups for rule in group}


def chosen_rules(rules: Mapping[str, HazardRule], names: Collection[str]) -> tuple[HazardRule, ...]:
    """Return the rules to apply.

    Args:
        names: The names of some rules, or `ALL`. If empty, the default rules are returned.
    """
    return tuple(
        rule
        for name, rule in rules.items()
        if (name in names or ALL in names if names else rule.is_default)
    )
