"""The rules that there are: those of this extension, and those that other plugins offer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pytest_multihost.extensions.hazards.order import ORDER
from pytest_multihost.extensions.hazards.rule import HazardRule
from pytest_multihost.extensions.hazards.skipped import SKIPPED
from pytest_multihost.extensions.hazards.threads import THREADS
from pytest_multihost.extensions.hazards.unwaited import UNWAITED

if TYPE_CHECKING:
    import pluggy

BUILT_IN_RULES = (ORDER, THREADS, UNWAITED, SKIPPED)
"""The rules of this extension, in the order in which their hazards are reported."""

ALL = "all"
"""Stands for the names of all rules."""


def offered_rules(hook: pluggy.HookRelay) -> Mapping[str, HazardRule]:
    """Return the rules of all plugins by name; of one name that of the plugin registered last."""
    groups = reversed(hook.pytest_multihost_hazard_rules())  # the first is the one registered last
    return {rule.name: rule for group in groups for rule in group}


def chosen_rules(rules: Mapping[str, HazardRule], names: Collection[str]) -> tuple[HazardRule, ...]:
    """Return the rules with some names; without names those that are applied by default.

    Args:
        rules: All that there are, by name.
        names: Of some of them, or `ALL`.
    """
    return tuple(
        rule
        for name, rule in rules.items()
        if (name in names or ALL in names if names else rule.is_default)
    )
